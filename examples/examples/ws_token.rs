//! A WebSocket server whose clients need a signed token that expires, in the parameter `token` of
//! the URL: a JSON Web Token (RFC 7519) with HMAC-SHA-256.
//!
//! ```sh
//! cargo run --example ws_token -- 127.0.0.1:9010 'a secret of thirty-two bytes or more'
//! ```
//!
//! It prints a token that is good for a minute. An application would hand it to a client that has
//! logged in.

use std::{error::Error, net::SocketAddr, process::ExitCode, sync::Arc};

use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode, get_current_timestamp,
};
use serde::{Deserialize, Serialize};
use windlass_server::{
    Backend, Connection, Handler, Message, Options, RunningServer, Server,
    http::{Accept, Reject, UpgradeRequest},
};

/// The content of a token.
#[derive(Serialize, Deserialize)]
struct Claims {
    /// The user.
    sub: String,
    /// The end of its validity, in seconds since 1970.
    exp: u64,
}

/// Makes a token for a user.
fn token(secret: &str, user: &str, seconds: u64) -> jsonwebtoken::errors::Result<String> {
    let claims = Claims { sub: user.to_owned(), exp: get_current_timestamp() + seconds };
    encode(&Header::default(), &claims, &EncodingKey::from_secret(secret.as_bytes()))
}

/// Greets users by their names.
struct Greeter {
    key: Arc<DecodingKey>,
}

impl Handler for Greeter {
    /// The name of the user.
    type Data = String;

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<String>, Reject> {
        let refuse = |text: &'static str| {
            Reject::status(401).text(text).header("WWW-Authenticate", "Bearer")
        };
        let token = request.query_value("token").ok_or_else(|| refuse("there is no token"))?;
        // It requires the algorithm and the claim `exp`, and 60 s of tolerance are its default.
        let mut rules = Validation::new(Algorithm::HS256);
        rules.leeway = 0;
        let token = decode::<Claims>(&token, &self.key, &rules)
            .map_err(|_| refuse("the token is wrong or has expired"))?;
        Ok(Accept::new(token.claims.sub))
    }

    fn on_message(&self, connection: &mut Connection<'_>, user: &mut String, _: Message<'_>) {
        // It fails only if the connection is closing.
        let _ = connection.send(format!("hello, {user}"));
    }
}

fn start(address: SocketAddr, backend: Backend, secret: &str) -> std::io::Result<RunningServer> {
    let key = Arc::new(DecodingKey::from_secret(secret.as_bytes()));
    let make = move |_worker| Greeter { key: Arc::clone(&key) };
    Server::new(Options::new(), make).backend(backend).listen(address).start()
}

fn run(address: &str, secret: &str) -> Result<(), Box<dyn Error>> {
    let server = start(address.parse()?, windlass_examples::backend()?, secret)?;
    println!("ws://{}/?token={}", server.addresses()[0], token(secret, "Ada", 60)?);
    server.join()?;
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, secret] = &arguments[..] else {
        eprintln!("usage: ws_token ADDR:PORT SECRET");
        return ExitCode::from(2);
    };
    match run(address, secret) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ws_token: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    const SECRET: &str = "a secret of the test, of 32 bytes";

    #[test]
    fn only_a_good_token_opens_a_websocket() {
        let backend = windlass_examples::backend().unwrap();
        let server = start(([127, 0, 0, 1], 0).into(), backend, SECRET).unwrap();
        let address = server.addresses()[0].socket_addr().unwrap();
        let connect = |query: &str| {
            let stream = TcpStream::connect(address).unwrap();
            let connected = tungstenite::client(format!("ws://{address}/{query}"), stream);
            connected.map_err(|error| error.to_string())
        };
        let good = token(SECRET, "Ada", 60).unwrap();
        let (mut client, _) = connect(&format!("?token={good}")).unwrap();
        client.send("hello".into()).unwrap();
        assert_eq!(client.read().unwrap(), "hello, Ada".into());

        let expired = encode(
            &Header::default(),
            &Claims { sub: "Ada".to_owned(), exp: get_current_timestamp() - 1 },
            &EncodingKey::from_secret(SECRET.as_bytes()),
        );
        let forged = token("another secret, also of 32 bytes", "Ada", 60).unwrap();
        for token in ["", "nonsense", &expired.unwrap(), &forged, &good[..good.len() - 1]] {
            assert!(connect(&format!("?token={token}")).is_err(), "{token}");
        }
        assert!(connect("").is_err());
        server.stop();
        server.join().unwrap();
    }
}
