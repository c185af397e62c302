//! How long to wait before a request is sent again.

use std::time::Duration;
use std::time::SystemTime;

/// Bounds of the retries of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Most retries.
    pub count: u32,
    /// The first wait; it doubles each time.
    pub first: Duration,
    /// The longest wait of our own choice; a server may ask for more.
    pub longest: Duration,
    /// No retry begins when this much time passed since the request was first sent.
    pub total: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            count: 8,
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
            total: Duration::from_secs(1800),
        }
    }
}

impl Retry {
    /// How long to wait before the retry after `done` earlier ones, or `None` when it is not to be. `asked` is what the
    /// server asked for, `spent` the time since the request was first sent.
    pub(crate) fn wait(
        &self,
        done: u32,
        asked: Option<Duration>,
        spent: Duration,
    ) -> Option<Duration> {
        if done >= self.count {
            return None;
        }
        let doubled = self.first.saturating_mul(2_u32.saturating_pow(done)).min(self.longest);
        // Workers that failed together must not come back together.
        let wait = match asked {
            Some(asked) => asked
                .saturating_add(self.first.min(Duration::from_secs(1)).mul_f64(fastrand::f64())),
            None => doubled.mul_f64(0.5 + 0.5 * fastrand::f64()),
        };
        (spent.saturating_add(wait) < self.total).then_some(wait)
    }
}

/// Reads a `Retry-After` header: seconds or an HTTP date (RFC 9110, 10.2.3).
pub(crate) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => {
            let date = httpdate::parse_http_date(text).ok()?;
            Some(date.duration_since(now).unwrap_or(Duration::ZERO))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_with_jitter_and_end() {
        let retry = Retry { count: 4, longest: Duration::from_secs(3), ..Retry::default() };
        for (done, most) in [(0, 1.0), (1, 2.0), (2, 3.0), (3, 3.0)] {
            for _ in 0..50 {
                let wait = retry.wait(done, None, Duration::ZERO).unwrap().as_secs_f64();
                assert!((most / 2.0..=most).contains(&wait), "{done}: {wait}");
            }
        }
        assert_eq!(retry.wait(4, None, Duration::ZERO), None);
    }

    #[test]
    fn the_server_is_waited_for_unless_it_takes_too_long() {
        let retry = Retry { total: Duration::from_secs(30), ..Retry::default() };
        let wait = retry
            .wait(0, Some(Duration::from_secs(20)), Duration::from_secs(1))
            .unwrap()
            .as_secs_f64();
        assert!((20.0..=21.0).contains(&wait), "{wait}");
        assert_eq!(retry.wait(0, Some(Duration::from_secs(20)), Duration::from_secs(10)), None);
        assert_eq!(retry.wait(0, Some(Duration::MAX), Duration::ZERO), None);
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let now = httpdate::parse_http_date("Mon, 30 Nov 2026 15:00:00 GMT").unwrap();
        assert_eq!(retry_after(" 7 ", now), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("0.5", now), Some(Duration::from_millis(500)));
        assert_eq!(retry_after("Mon, 30 Nov 2026 15:00:09 GMT", now), Some(Duration::from_secs(9)));
        assert_eq!(retry_after("Mon, 30 Nov 2026 14:00:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(retry_after("-1", now), None);
        assert_eq!(retry_after("soon", now), None);
    }
}
