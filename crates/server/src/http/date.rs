//! Date and time in HTTP's format (RFC 9110 section 5.6.7).

use std::time::{SystemTime, UNIX_EPOCH};

const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const SECONDS_A_DAY: u64 = 86_400;

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
    let (days, second) = (since.as_secs() / SECONDS_A_DAY, since.as_secs() % SECONDS_A_DAY);
    let Some((year, month, day)) = civil_from_days(days) else { return false };
    out.extend_from_slice(WEEKDAYS[(days % 7) as usize].as_bytes());
    out.extend_from_slice(b", ");
    two_digits(day, out);
    out.push(b' ');
    out.extend_from_slice(MONTHS[month].as_bytes());
    out.push(b' ');
    two_digits(year / 100, out);
    two_digits(year % 100, out);
    out.push(b' ');
    two_digits(second / 3600, out);
    out.push(b':');
    two_digits(second / 60 % 60, out);
    out.push(b':');
    two_digits(second % 60, out);
    out.extend_from_slice(b" GMT");
    true
}

/// Converts a number of days since 1970 to year, month from 0, and day from 1.
///
/// Years are counted from 1 March of the year 0. Then a leap day is the last day of its year, and
/// the month lengths repeat every five months (153 days).
fn civil_from_days(days: u64) -> Option<(u64, usize, u64)> {
    if days > 2_932_896 {
        return None;
    }
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = ((month_from_march + 2) % 12) as usize;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    Some((year, month, day))
}

fn two_digits(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b'0' + (number / 10 % 10) as u8, b'0' + (number % 10) as u8]);
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

    /// Compares every day of 8,030 years with a count day by day.
    #[test]
    fn days_are_counted_like_on_a_calendar() {
        let (mut year, mut month, mut day) = (1970, 0, 1);
        for days in 0..=2_932_896 {
            assert_eq!(civil_from_days(days), Some((year, month, day)), "{days}");
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let lengths =
                [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            day += 1;
            if day > lengths[month] {
                (day, month) = (1, month + 1);
            }
            if month == 12 {
                (month, year) = (0, year + 1);
            }
        }
        assert_eq!(year, 10_000);
    }
}
