//! The delays between attempts.

use std::time::{Duration, SystemTime};

use super::super::error::ServerResponse;

/// The delays between attempts: exponential, with jitter and a limit.
///
/// Before attempt *n* after a failure, the delay is between a half and the whole of
/// `first · 2ⁿ⁻¹`, at most `max`. A Retry-After of the server makes it longer, up to
/// `retry_after_max`. A connection that has lasted for `stable_after` begins with `first` again.
///
/// ```
/// use std::time::Duration;
/// use windlass_websocket::client::Backoff;
///
/// let mut backoff = Backoff::DEFAULT;
/// backoff.max = Duration::from_secs(5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backoff {
    /// The longest first delay. Default: 500 ms.
    pub first: Duration,
    /// The longest delay. Default: 30 s.
    pub max: Duration,
    /// The longest delay that a server's Retry-After is given. Default: 5 minutes.
    pub retry_after_max: Duration,
    /// How long a connection lasts to count as a success. Default: 5 s.
    pub stable_after: Duration,
    /// The most failures in succession. `None` is no limit. Default: `None`.
    pub attempts_max: Option<u32>,
}

impl Backoff {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        first: Duration::from_millis(500),
        max: Duration::from_secs(30),
        retry_after_max: Duration::from_secs(300),
        stable_after: Duration::from_secs(5),
        attempts_max: None,
    };

    /// The delay after this many failures, at least one. `random` is the jitter.
    pub(super) fn delay(
        &self,
        failures: u32,
        random: u32,
        response: Option<&ServerResponse>,
    ) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let whole = self.first.saturating_mul(1 << doublings).min(self.max);
        let jitter = (whole / 2).mul_f64(f64::from(random) / f64::from(u32::MAX));
        let asked = response.and_then(retry_after).unwrap_or_default();
        (whole / 2 + jitter).max(asked.min(self.retry_after_max))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The delay that a server asks for (RFC 9110 section 10.2.3).
fn retry_after(response: &ServerResponse) -> Option<Duration> {
    let text = response.header("Retry-After")?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    // The clocks of both may differ.
    let now = response.header("Date").and_then(|text| httpdate::parse_http_date(text).ok());
    date.duration_since(now.unwrap_or_else(SystemTime::now)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(headers: &[(&str, &str)]) -> ServerResponse {
        let headers =
            headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().into()));
        ServerResponse { status: 503, headers: headers.collect(), body: Vec::new() }
    }

    #[test]
    fn delays_double_up_to_the_limit_and_have_jitter() {
        let longest = |failures| Backoff::DEFAULT.delay(failures, u32::MAX, None).as_millis();
        let shortest = |failures| Backoff::DEFAULT.delay(failures, 0, None).as_millis();
        assert_eq!(
            [1, 2, 3, 6, 7, 8, 1000, u32::MAX].map(longest),
            [500, 1000, 2000, 16_000, 30_000, 30_000, 30_000, 30_000]
        );
        assert_eq!([1, 2, 7].map(shortest), [250, 500, 15_000]);
    }

    #[test]
    fn the_servers_wish_is_respected_up_to_a_limit() {
        let backoff = Backoff::DEFAULT;
        let delay =
            |headers: &[_]| backoff.delay(1, u32::MAX, Some(&asking(headers))).as_secs_f32();
        assert_eq!(delay(&[("Retry-After", "7")]), 7.0);
        assert_eq!(delay(&[("Retry-After", "0")]), 0.5);
        assert_eq!(delay(&[("Retry-After", "99999999999")]), 300.0);
        assert_eq!(delay(&[("Retry-After", "-1")]), 0.5);
        assert_eq!(delay(&[("Retry-After", "soon")]), 0.5);
        let date = ("Date", "Fri, 27 Nov 2026 07:00:00 GMT");
        assert_eq!(delay(&[("Retry-After", "Fri, 27 Nov 2026 07:00:09 GMT"), date]), 9.0);
        assert_eq!(delay(&[("Retry-After", "Fri, 27 Nov 2026 06:00:00 GMT"), date]), 0.5);
    }
}
