//! The negotiation of permessage-deflate (RFC 7692 section 7.1).

use alloc::vec::Vec;

use super::extensions::{Extension, ParameterValue};
use super::fields::decimal;
use crate::deflate::config::{Agreement, BITS_MAX, BITS_MIN, DeflateConfig};

/// The extension's name.
pub(crate) const NAME: &str = "permessage-deflate";

/// The parameters of an offer or an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    server_max_window_bits: Option<u8>,
    /// In an offer it may have no value.
    client_max_window_bits: Option<Option<u8>>,
}

impl Parameters {
    /// The parameters of one element of the list. `None` if one is unknown, occurs twice, or has an
    /// invalid value. An offer is then declined; an answer fails the connection (section 7.1).
    pub(crate) fn read(extension: Extension<'_>) -> Option<Self> {
        let mut read = Self::default();
        for (name, value) in extension.parameters() {
            match (name, value) {
                ("server_no_context_takeover", None) if !read.server_no_context_takeover => {
                    read.server_no_context_takeover = true;
                }
                ("client_no_context_takeover", None) if !read.client_no_context_takeover => {
                    read.client_no_context_takeover = true;
                }
                ("server_max_window_bits", Some(value))
                    if read.server_max_window_bits.is_none() =>
                {
                    read.server_max_window_bits = Some(window_bits(value)?);
                }
                ("client_max_window_bits", value) if read.client_max_window_bits.is_none() => {
                    read.client_max_window_bits = Some(match value {
                        Some(value) => Some(window_bits(value)?),
                        None => None,
                    });
                }
                _ => return None,
            }
        }
        Some(read)
    }

    /// Appends the extension's name and the parameters.
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(NAME.as_bytes());
        for (name, is_there) in [
            ("server_no_context_takeover", self.server_no_context_takeover),
            ("client_no_context_takeover", self.client_no_context_takeover),
        ] {
            if is_there {
                write_parameter(name, None, out);
            }
        }
        if let Some(bits) = self.server_max_window_bits {
            write_parameter("server_max_window_bits", Some(bits), out);
        }
        if let Some(bits) = self.client_max_window_bits {
            write_parameter("client_max_window_bits", bits, out);
        }
    }
}

/// A number from 8 to 15 without leading zeros (section 7.1.2).
fn window_bits(value: ParameterValue<'_>) -> Option<u8> {
    let mut bytes = value.bytes();
    let (first, second, None) = (bytes.next()?, bytes.next(), bytes.next()) else {
        return None;
    };
    match (first, second) {
        (b'8' | b'9', None) => Some(first - b'0'),
        (b'1', Some(digit @ b'0'..=b'5')) => Some(10 + (digit - b'0')),
        _ => None,
    }
}

fn write_parameter(name: &str, bits: Option<u8>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"; ");
    out.extend_from_slice(name.as_bytes());
    if let Some(bits) = bits {
        out.push(b'=');
        decimal(usize::from(bits), out);
    }
}

/// Appends a server's answer to an offer. Returns `None`, and appends nothing, if it declines.
pub(crate) fn answer(
    config: &DeflateConfig,
    offer: &Parameters,
    out: &mut Vec<u8>,
) -> Option<Agreement> {
    let server_max_window_bits = match offer.server_max_window_bits {
        // zlib does not compress with such a window.
        Some(bits) if bits < BITS_MIN => return None,
        Some(bits) => bits.min(config.server_bits()),
        None => config.server_bits(),
    };
    let client_max_window_bits = match offer.client_max_window_bits {
        Some(hint) => hint.unwrap_or(BITS_MAX).min(config.client_bits()),
        // Such a client cannot be limited (section 7.1.2.2).
        None if config.client_bits() < BITS_MAX => return None,
        None => BITS_MAX,
    };
    let agreement = Agreement {
        server_no_context_takeover: offer.server_no_context_takeover || config.server_no_takeover(),
        client_no_context_takeover: offer.client_no_context_takeover
            || config.client_no_context_takeover,
        server_max_window_bits,
        client_max_window_bits,
    };
    let answer = Parameters {
        server_no_context_takeover: agreement.server_no_context_takeover,
        client_no_context_takeover: agreement.client_no_context_takeover,
        server_max_window_bits: (offer.server_max_window_bits.is_some()
            || server_max_window_bits < BITS_MAX)
            .then_some(server_max_window_bits),
        client_max_window_bits: (client_max_window_bits < BITS_MAX)
            .then_some(Some(client_max_window_bits)),
    };
    answer.write(out);
    Some(agreement)
}

/// A client's offer.
fn offer(config: &DeflateConfig) -> Parameters {
    let limit = |bits| (bits < BITS_MAX).then_some(bits);
    Parameters {
        server_no_context_takeover: config.server_no_context_takeover,
        client_no_context_takeover: config.client_no_takeover(),
        server_max_window_bits: limit(config.server_bits()),
        // Always present. Without it the server could not ask for a smaller window.
        client_max_window_bits: Some(limit(config.client_bits())),
    }
}

/// Appends a client's offer.
pub(crate) fn write_offer(config: &DeflateConfig, out: &mut Vec<u8>) {
    offer(config).write(out);
}

/// The agreement that results from a server's answer to the client's offer. `None` if the answer
/// does not match the offer, or demands something that zlib cannot do. The connection then fails
/// (section 7.1).
pub(crate) fn check(config: &DeflateConfig, answer: &Parameters) -> Option<Agreement> {
    let offer = offer(config);
    if offer.server_no_context_takeover && !answer.server_no_context_takeover {
        return None;
    }
    let server_max_window_bits = match (offer.server_max_window_bits, answer.server_max_window_bits)
    {
        (Some(_), None) => return None,
        (Some(limit), Some(bits)) if bits > limit => return None,
        (_, bits) => bits.unwrap_or(BITS_MAX),
    };
    let client_max_window_bits = match answer.client_max_window_bits {
        None => config.client_bits(),
        Some(Some(bits)) if (BITS_MIN..=config.client_bits()).contains(&bits) => bits,
        // No value, a value above the offered one, or 8.
        Some(_) => return None,
    };
    Some(Agreement {
        server_no_context_takeover: answer.server_no_context_takeover,
        client_no_context_takeover: offer.client_no_context_takeover
            || answer.client_no_context_takeover,
        server_max_window_bits,
        client_max_window_bits,
    })
}
