//! `/connections`, `/rooms` and `/disconnect`: their parameters and answers.

use std::borrow::Cow;

use crate::{
    api::{
        ConnectionId, ConnectionOrder, ConnectionQuery, DisconnectTarget, Disconnected, Inspected,
        ListedConnection, ListedTopic,
    },
    http::Networks,
    metrics::json_string,
};

/// An invalid parameter, in the words of the response.
pub(super) type ParameterError = String;

/// The parameters of a request, each at most once.
struct Parameters<'q>(Vec<(Cow<'q, str>, Cow<'q, str>)>);

impl<'q> Parameters<'q> {
    fn parse(query: Option<&'q str>, known: &[&str]) -> Result<Self, ParameterError> {
        let mut all: Vec<(Cow<'_, str>, Cow<'_, str>)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            if !known.contains(&&*name) {
                let known = known.join(", ");
                return Err(format!("unknown parameter {}: allowed are {known}", shown(&name)));
            }
            if all.iter().any(|(other, _)| *other == name) {
                return Err(format!("parameter {name} is given twice: allowed is one value"));
            }
            all.push((name, value));
        }
        Ok(Self(all))
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    fn limit(&self) -> Result<usize, ParameterError> {
        let most = ConnectionQuery::ROWS_MAX;
        let Some(text) = self.value("limit") else { return Ok(ConnectionQuery::new().limit) };
        let limit = text.parse().ok().filter(|limit| (1..=most).contains(limit));
        limit.ok_or_else(|| bad("limit", text, &format!("a number from 1 to {most}")))
    }

    fn room(&self) -> Result<Option<Box<str>>, ParameterError> {
        match self.value("room") {
            Some("") => Err(bad("room", "", "the name of a room, as /rooms has it")),
            room => Ok(room.map(Into::into)),
        }
    }
}

fn bad(name: &str, value: &str, allowed: &str) -> ParameterError {
    format!("parameter {name} is {}: allowed is {allowed}", shown(value))
}

/// A text of the peer in a response: on one line, and not long.
fn shown(text: &str) -> String {
    json_string(&text.chars().take(64).collect::<String>())
}

pub(super) fn connection_query(query: Option<&str>) -> Result<ConnectionQuery, ParameterError> {
    let parameters = Parameters::parse(query, &["sort", "room", "limit"])?;
    let order = match parameters.value("sort") {
        None | Some("bytes") => ConnectionOrder::Bytes,
        Some("age") => ConnectionOrder::Age,
        Some("buffered") => ConnectionOrder::Buffered,
        Some(other) => return Err(bad("sort", other, "bytes, age or buffered")),
    };
    let (limit, topic) = (parameters.limit()?, parameters.room()?);
    Ok(ConnectionQuery { order, topic, limit })
}

pub(super) fn room_limit(query: Option<&str>) -> Result<usize, ParameterError> {
    Parameters::parse(query, &["limit"])?.limit()
}

/// Which connections to disconnect, as the request names them.
pub(super) struct DisconnectRequest {
    pub(super) by: &'static str,
    pub(super) value: String,
    pub(super) target: DisconnectTarget,
}

pub(super) fn disconnect_request(query: Option<&str>) -> Result<DisconnectRequest, ParameterError> {
    const KNOWN: [&str; 3] = ["id", "address", "room"];
    let parameters = Parameters::parse(query, &KNOWN)?;
    let [(by, value)] = &parameters.0[..] else {
        return Err("one parameter is needed: allowed are id, address and room".to_owned());
    };
    let (by, target) = match &**by {
        "id" => {
            let id = value.parse::<ConnectionId>().ok();
            let allowed = "an ID such as 0.17.3, as /connections has it";
            ("id", DisconnectTarget::Id(id.ok_or_else(|| bad("id", value, allowed))?))
        }
        "address" => {
            let networks = Networks::parse(&[value]).ok();
            let allowed = "an IP address without a port, ADDRESS/BITS, or unix";
            let networks = networks.ok_or_else(|| bad("address", value, allowed))?;
            ("address", DisconnectTarget::Addresses(networks))
        }
        _ => ("room", DisconnectTarget::Topic(parameters.room()?.unwrap_or_default())),
    };
    Ok(DisconnectRequest { by, value: value.clone().into_owned(), target })
}

pub(super) fn connections_json(found: &Inspected<ListedConnection>) -> Vec<u8> {
    object("connections", found, |row| {
        let (bytes_in, bytes_out) = row.bytes.map_or_else(
            || ("null".to_owned(), "null".to_owned()),
            |(received, acked)| (received.to_string(), acked.to_string()),
        );
        let rooms: Vec<_> = row.topics.iter().map(|topic| json_string(topic)).collect();
        format!(
            "{{\"id\":\"{}\",\"address\":{},\"state\":\"{}\",\"transport\":\"{}\",\
             \"age_seconds\":{},\"idle_seconds\":{},\"bytes_in\":{bytes_in},\
             \"bytes_out\":{bytes_out},\"buffered_bytes\":{},\"rooms\":[{}]}}",
            row.id,
            json_string(&row.peer.to_string()),
            row.state,
            row.transport,
            row.age.as_secs(),
            row.idle.as_secs(),
            row.buffered,
            rooms.join(","),
        )
    })
}

pub(super) fn rooms_json(found: &Inspected<ListedTopic>) -> Vec<u8> {
    object("rooms", found, |row| {
        let ListedTopic { name, subscribers, delivered } = row;
        let name = json_string(name);
        format!("{{\"name\":{name},\"subscribers\":{subscribers},\"delivered\":{delivered}}}")
    })
}

pub(super) fn disconnected_json(done: Disconnected) -> Vec<u8> {
    let Disconnected { count, is_complete } = done;
    format!("{{\"disconnected\":{count},\"complete\":{is_complete}}}\n").into_bytes()
}

fn object<T>(name: &str, found: &Inspected<T>, row: impl Fn(&T) -> String) -> Vec<u8> {
    let Inspected { rows, count, is_complete } = found;
    let rows = rows.iter().map(row).collect::<Vec<_>>().join(",");
    format!("{{\"{name}\":[{rows}],\"count\":{count},\"complete\":{is_complete}}}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_parameters_are_read() {
        let default = connection_query(None).unwrap();
        assert_eq!(default, ConnectionQuery::new());
        let query = connection_query(Some("limit=1000&room=%2Froom%2Fa+b&sort=buffered")).unwrap();
        assert_eq!((query.order, query.limit), (ConnectionOrder::Buffered, 1000));
        assert_eq!(query.topic.as_deref(), Some("/room/a b"));
        assert_eq!(room_limit(Some("limit=7")), Ok(7));
        let id = disconnect_request(Some("id=1.17.3")).unwrap();
        assert_eq!((id.by, &*id.value), ("id", "1.17.3"));
        assert_eq!(id.target, DisconnectTarget::Id(ConnectionId::new(1, 17, 3)));
        let room = disconnect_request(Some("room=a")).unwrap();
        assert_eq!(room.target, DisconnectTarget::Topic("a".into()));
        let networks = Networks::parse(&["10.0.0.0/8"]).unwrap();
        let address = disconnect_request(Some("address=10.0.0.0/8")).unwrap();
        assert_eq!(address.target, DisconnectTarget::Addresses(networks));
    }

    #[test]
    fn an_error_names_the_parameter_and_what_is_allowed() {
        let connections = |query| connection_query(Some(query)).unwrap_err();
        let disconnect = |query| disconnect_request(Some(query)).err().unwrap();
        for (error, expected) in [
            (connections("sort=size"), "parameter sort is \"size\": allowed is bytes, age or buf"),
            (
                connections("limit=0"),
                "parameter limit is \"0\": allowed is a number from 1 to 1000",
            ),
            (connections("limit=1001"), "parameter limit is \"1001\""),
            (connections("room="), "parameter room is \"\": allowed is the name of a room"),
            (connections("x\n=1"), "unknown parameter \"x\\u000a\": allowed are sort, room, limit"),
            (connections("limit=1&limit=2"), "parameter limit is given twice"),
            (
                room_limit(Some("sort=age")).unwrap_err(),
                "unknown parameter \"sort\": allowed are l",
            ),
            (disconnect(""), "one parameter is needed: allowed are id, address and room"),
            (disconnect("id=0.1.2&room=a"), "one parameter is needed"),
            (disconnect("id=0.1"), "parameter id is \"0.1\": allowed is an ID such as 0.17.3"),
            (disconnect("address=1.2.3.4:5"), "parameter address is \"1.2.3.4:5\": allowed is an"),
            (disconnect("room="), "parameter room is \"\""),
        ] {
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
