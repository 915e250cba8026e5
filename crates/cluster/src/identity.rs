//! How a node proves who it is.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Map, Value};

/// What the server is shown.
pub(crate) enum Identity {
    User(String, String),
    Token(String),
    /// The JWT says who the user is, and the key proves it.
    Jwt(String, UserKey),
    Key(UserKey),
}

impl Identity {
    /// Adds its fields to those of CONNECT. The nonce is what the server wants to be signed.
    pub(crate) fn add_to(&self, connect: &mut Map<String, Value>, nonce: &str) {
        let fields = match self {
            Self::User(user, password) => vec![("user", user.clone()), ("pass", password.clone())],
            Self::Token(token) => vec![("auth_token", token.clone())],
            Self::Jwt(jwt, key) => vec![("jwt", jwt.clone()), ("sig", key.sign(nonce))],
            Self::Key(key) => vec![("nkey", key.public.clone()), ("sig", key.sign(nonce))],
        };
        connect.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value.into())));
    }

    /// Reads a file of credentials: a JWT and a seed, each between two lines of dashes.
    pub(crate) fn from_credentials(text: &str) -> Option<Self> {
        let is_mark = |line: &&str| line.starts_with("---");
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        let mut found = lines.windows(3).filter_map(|three| match three {
            [before, line, after] if is_mark(before) && is_mark(after) => {
                Some(*line).filter(|line| !line.is_empty() && !is_mark(line))
            }
            _ => None,
        });
        let (jwt, seed) = (found.next()?, found.next()?);
        Some(Self::Jwt(jwt.to_owned(), UserKey::from_seed(seed)?))
    }
}

/// The key of a user, which NATS calls an NKEY.
pub(crate) struct UserKey {
    pair: Ed25519KeyPair,
    /// The public part, as NATS writes it.
    public: String,
}

/// The first byte of what is written: the letter U in base32.
const USER: u8 = 20 << 3;

/// The same for S. The letter of the kind follows in the next five bits.
const SEED: u8 = 18 << 3;

impl UserKey {
    /// Reads the seed of a user: `SU` and 56 letters and digits.
    pub(crate) fn from_seed(seed: &str) -> Option<Self> {
        let bytes: [u8; 36] = from_base32(seed)?.try_into().ok()?;
        if to_base32(&bytes) != seed {
            return None;
        }
        let (content, checksum) = bytes.split_at(34);
        let kind = [SEED | (USER >> 5), (USER & 31) << 3];
        if content[..2] != kind || checksum != crc16(content).to_le_bytes() {
            return None;
        }
        let pair = Ed25519KeyPair::from_seed_unchecked(&content[2..]).ok()?;
        let mut public = vec![USER];
        public.extend(pair.public_key().as_ref());
        public.extend(crc16(&public).to_le_bytes());
        Some(Self { pair, public: to_base32(&public) })
    }

    fn sign(&self, nonce: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.pair.sign(nonce.as_bytes()))
    }
}

/// The alphabet of RFC 4648 section 6.
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn from_base32(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for char in text.bytes() {
        let value = BASE32.iter().position(|one| *one == char)?;
        bits = bits << 5 | u32::try_from(value).ok()?;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

fn to_base32(bytes: &[u8]) -> String {
    let bit =
        |place: usize| bytes.get(place / 8).is_some_and(|byte| byte >> (7 - place % 8) & 1 == 1);
    let letter = |first: usize| {
        let value = (first..first + 5).fold(0, |value, place| value << 1 | usize::from(bit(place)));
        char::from(BASE32[value])
    };
    (0..bytes.len() * 8).step_by(5).map(letter).collect()
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair that the documentation of NATS shows.
    const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    const KEY: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

    #[test]
    fn a_seed_has_its_key() {
        assert_eq!(UserKey::from_seed(SEED).unwrap().public, KEY);
        let other_kind = SEED.replacen("SU", "SA", 1);
        let mistyped = SEED.replacen("ACSS", "ACST", 1);
        for wrong in ["", "SU", KEY, &other_kind, &mistyped, &SEED[..57], &format!("{SEED}A")] {
            assert!(UserKey::from_seed(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_file_of_credentials_has_a_jwt_and_a_seed() {
        let mark = |what: &str| format!("-----{what} NATS-----");
        let text = format!(
            "{}\nj.w-t_=\n-{}\r\n\n***** IMPORTANT\n\n{}\r\n{SEED}\r\n-{}\n",
            mark("BEGIN"),
            mark("END"),
            mark("BEGIN"),
            mark("END")
        );
        let Some(Identity::Jwt(jwt, key)) = Identity::from_credentials(&text) else { panic!() };
        assert_eq!((&*jwt, &*key.public), ("j.w-t_=", KEY));
        assert!(Identity::from_credentials(&text.replace(SEED, KEY)).is_none());
        assert!(Identity::from_credentials("").is_none());
    }
}
