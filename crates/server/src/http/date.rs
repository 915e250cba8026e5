//! Date and time in HTTP's format (RFC 9110 section 5.6.7).

use std::{
    io::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

/// The first second of the year 10000, which the format cannot express.
const END: u64 = 253_402_300_800;

/// Appends `Date: Sun, 06 Nov 1994 08:49:37 GMT` and a line ending. Appends nothing if the clock
/// shows a year before 1970 or after 9999: a server without a clock sends no Date (RFC 9110 section
/// 6.6.1).
pub(super) fn write_date(now: SystemTime, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(b"Date: ");
    if write_value(now, out) {
        out.extend_from_slice(b"\r\n");
    } else {
        out.truncate(start);
    }
}

/// Appends the date alone. Returns false, and appends nothing, if it cannot be written.
pub(super) fn write_value(now: SystemTime, out: &mut Vec<u8>) -> bool {
    let Ok(since) = now.duration_since(UNIX_EPOCH) else { return false };
    // The conversion panics outside these years. Writing to a vector does not fail.
    since.as_secs() < END && write!(out, "{}", httpdate::HttpDate::from(now)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn date(seconds: u64) -> String {
        let mut out = Vec::new();
        write_date(UNIX_EPOCH + Duration::from_secs(seconds), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn known_dates() {
        assert_eq!(date(0), "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n");
        assert_eq!(
            date(784_111_777),
            "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
            "the example of the RFC"
        );
        assert_eq!(date(951_827_696), "Date: Tue, 29 Feb 2000 12:34:56 GMT\r\n");
        assert_eq!(date(253_402_300_799), "Date: Fri, 31 Dec 9999 23:59:59 GMT\r\n");
    }

    #[test]
    fn a_year_that_has_not_four_digits_is_not_written() {
        assert_eq!(date(253_402_300_800), "");
        let mut out = Vec::new();
        write_date(UNIX_EPOCH - Duration::from_secs(1), &mut out);
        assert!(out.is_empty());
    }
}
