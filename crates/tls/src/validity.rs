//! The time in which a certificate is valid.

use std::time::{Duration, SystemTime};

use crate::subject::{any, before_subject};

/// DER tags (X.690) of times.
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The first and the last second since 1970 at which a certificate is valid (RFC 5280 section
/// 4.1.2.5). `None` if they cannot be read.
pub(crate) fn period(der: &[u8]) -> Option<(u64, u64)> {
    // The serial number, the signature's algorithm and the issuer come before the validity.
    let (_, validity, _) = any(before_subject(der, 3)?)?;
    let (tag, from, rest) = any(validity)?;
    let from = time(tag, from)?;
    let (tag, until, _) = any(rest)?;
    Some((from, time(tag, until)?))
}

/// The time until which a certificate is valid. `None` if it cannot be read.
pub(crate) fn not_after(der: &[u8]) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(period(der)?.1))
}

/// The seconds since 1970 of a time.
fn time(tag: u8, text: &[u8]) -> Option<u64> {
    match (tag, text.len()) {
        (UTC_TIME, 13) => {
            let year = digits(&text[..2])?;
            seconds(if year < 50 { 2000 + year } else { 1900 + year }, &text[2..])
        }
        (GENERALIZED_TIME, 15) => seconds(digits(&text[..4])?, &text[4..]),
        _ => None,
    }
}

/// The seconds since 1970 of `MMDDHHMMSSZ` in a year.
fn seconds(year: u64, rest: &[u8]) -> Option<u64> {
    let part = |at: usize| digits(rest.get(at..at + 2)?);
    let (month, day) = (part(0)?, part(2)?);
    let (hours, minutes, seconds) = (part(4)?, part(6)?, part(8)?);
    let is_good =
        (1..=12).contains(&month) && (1..=31).contains(&day) && rest.last() == Some(&b'Z');
    if !is_good || hours > 23 || minutes > 59 || seconds > 59 {
        return None;
    }
    // Years that begin in March end with the leap day.
    let (year, month) =
        if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days_until_1970 = 719_468;
    let days = days.checked_sub(days_until_1970)?;
    Some(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
}

fn digits(text: &[u8]) -> Option<u64> {
    let is_number = text.iter().all(u8::is_ascii_digit);
    is_number.then(|| text.iter().fold(0, |number, digit| 10 * number + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(year: u64, rest: &[u8]) -> Option<u64> {
        seconds(year, rest)
    }

    #[test]
    fn dates_become_seconds() {
        assert_eq!(at(1970, b"0101000000Z"), Some(0));
        assert_eq!(at(2000, b"0229235959Z"), Some(951_868_799));
        assert_eq!(at(2026, b"1122231352Z"), Some(1_795_389_232));
        assert_eq!(at(2100, b"0301000000Z"), Some(4_107_542_400));
        assert_eq!(at(9999, b"1231235959Z"), Some(253_402_300_799));
        for bad in [&b"1301000000Z"[..], b"0001000000Z", b"0100000000Z", b"010124000Z", b"01010000"]
        {
            assert_eq!(at(2026, bad), None, "{}", bad.escape_ascii());
        }
        assert_eq!(at(1969, b"1231235959Z"), None);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        let pem = include_bytes!("../tests/certificates/localhost.pem");
        let whole = CertificateDer::from_pem_slice(pem).unwrap();
        assert!(not_after(&whole).is_some());
        for len in 0..whole.len() {
            let _ = not_after(&whole[..len]);
            let mut changed = whole.to_vec();
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                changed[len] = byte;
                let _ = not_after(&changed);
            }
        }
    }
}
