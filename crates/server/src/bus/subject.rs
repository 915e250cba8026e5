//! The subject of a topic on the bus.
//!
//! A topic is any text, and a subject of NATS has neither spaces nor wildcards, and dots between
//! its tokens. So a topic is encoded by base64url (RFC 4648 section 5, without padding), behind the
//! prefix and the version of this mapping. A long topic is replaced by its hash. The envelope then
//! has the whole name.

use core::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha1::{Digest as _, Sha1};

/// Maximum length of a topic that is in its subject, in bytes.
pub(super) const TOPIC_BYTES_MAX: usize = 200;

/// Maximum length of a prefix in bytes.
const PREFIX_BYTES_MAX: usize = 64;

/// The version of the mapping and of the envelope.
const VERSION: &str = "v1";

/// Maps topics to subjects, and subjects to topics.
///
/// ```
/// use windlass_server::bus::{SubjectMap, SubjectTopic};
///
/// # fn main() -> Result<(), windlass_server::bus::PrefixError> {
/// let subjects = SubjectMap::new("chat")?;
/// assert_eq!(subjects.subject("/room/a b"), "chat.v1.t.L3Jvb20vYSBi");
/// let topic = subjects.topic("chat.v1.t.L3Jvb20vYSBi");
/// assert_eq!(topic, Some(SubjectTopic::Named("/room/a b".to_owned())));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectMap {
    /// The prefix and the version, with a dot behind each.
    start: String,
}

/// What a subject says about its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectTopic {
    /// The subject is that of this topic.
    Named(String),
    /// The subject has the hash of a long topic, whose name is in the envelope.
    Hashed,
}

impl SubjectMap {
    /// Creates the mapping with a prefix, which keeps servers apart that use the same bus.
    ///
    /// # Errors
    /// - [`PrefixError`] unless the prefix has 1 to 64 bytes, in tokens of ASCII letters, digits,
    ///   `-` and `_` with dots between them.
    pub fn new(prefix: &str) -> Result<Self, PrefixError> {
        let is_token = |token: &str| {
            !token.is_empty()
                && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        if prefix.len() > PREFIX_BYTES_MAX || !prefix.split('.').all(is_token) {
            return Err(PrefixError);
        }
        Ok(Self { start: format!("{prefix}.{VERSION}.") })
    }

    /// Returns the subject of a topic. It has at most 340 bytes.
    #[must_use]
    pub fn subject(&self, topic: &str) -> String {
        let mut subject = self.start.clone();
        match topic.len() {
            // A token is never empty.
            0 => subject.push('e'),
            1..=TOPIC_BYTES_MAX => {
                subject.push_str("t.");
                URL_SAFE_NO_PAD.encode_string(topic, &mut subject);
            }
            _ => {
                subject.push_str("h.");
                URL_SAFE_NO_PAD.encode_string(Sha1::digest(topic), &mut subject);
            }
        }
        subject
    }

    /// Maximum length of the subject of a topic in bytes.
    pub(super) fn subject_len_max(&self, topic: &str) -> usize {
        // Base64 has four characters for three bytes. A hash is shorter than the longest topic.
        self.start.len() + "t.".len() + topic.len().min(TOPIC_BYTES_MAX).div_ceil(3) * 4
    }

    /// Returns the topic of a subject. `None` if [`subject`](Self::subject) returns it for no
    /// topic.
    #[must_use]
    pub fn topic(&self, subject: &str) -> Option<SubjectTopic> {
        let rest = subject.strip_prefix(&self.start)?;
        if rest == "e" {
            return Some(SubjectTopic::Named(String::new()));
        }
        let (kind, code) = rest.split_once('.')?;
        // Other programs may publish to the bus too, so the length is checked before the rest.
        if code.is_empty() || code.len() > TOPIC_BYTES_MAX.div_ceil(3) * 4 {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(code).ok()?;
        match kind {
            "t" if bytes.len() <= TOPIC_BYTES_MAX => {
                String::from_utf8(bytes).ok().map(SubjectTopic::Named)
            }
            "h" if bytes.len() == <Sha1 as sha1::Digest>::output_size() => {
                Some(SubjectTopic::Hashed)
            }
            _ => None,
        }
    }
}

/// The prefix cannot be the beginning of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixError;

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a prefix of the cluster has 1 to {PREFIX_BYTES_MAX} bytes: words of ASCII letters, \
             digits, - and _, with dots between them"
        )
    }
}

impl std::error::Error for PrefixError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map() -> SubjectMap {
        SubjectMap::new("a.b").unwrap()
    }

    fn is_plain(subject: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        subject.split('.').all(|token| !token.is_empty() && token.bytes().all(is_plain))
    }

    #[test]
    fn odd_topics_have_plain_subjects() {
        for topic in ["", ".", ">", "*", "a b", "\0", "a.b.>", "\u{10ffff}", "\r\nPUB x 0\r\n"] {
            let subject = map().subject(topic);
            assert!(is_plain(&subject), "{topic:?}: {subject}");
            assert_eq!(map().topic(&subject), Some(SubjectTopic::Named(topic.to_owned())));
        }
    }

    #[test]
    fn a_long_topic_is_hashed() {
        let just = "x".repeat(TOPIC_BYTES_MAX);
        assert_eq!(map().topic(&map().subject(&just)), Some(SubjectTopic::Named(just)));
        let (long, other) = ("x".repeat(4096), "y".repeat(201));
        let (long, other) = (map().subject(&long), map().subject(&other));
        assert!(long.len() < 50 && is_plain(&long) && long != other);
        assert_eq!(map().topic(&long), Some(SubjectTopic::Hashed));
    }

    #[test]
    fn a_subject_of_others_is_no_topic() {
        let long = format!("a.b.v1.t.{}", "A".repeat(300));
        for subject in [
            "",
            "a.b",
            "a.b.v1.",
            "a.b.v1.t.",
            "a.b.v1.t.****",
            "a.b.v2.t.YQ",
            "a.c.v1.t.YQ",
            "a.b.v1.x.YQ",
            "a.b.v1.t.YQ==",
            "a.b.v1.t.YR",
            "a.b.v1.t._w",
            "a.b.v1.h.YQ",
            "a.b.v1.t.YQ.YQ",
            &long,
        ] {
            assert_eq!(map().topic(subject), None, "{subject}");
        }
    }

    #[test]
    fn a_prefix_is_checked() {
        for prefix in ["", ".", "a.", ".a", "a..b", "a b", "a>", "*", "\u{e9}", &"a".repeat(65)] {
            assert_eq!(SubjectMap::new(prefix), Err(PrefixError), "{prefix}");
        }
        assert!(SubjectMap::new(&"a".repeat(64)).is_ok());
        let longest = SubjectMap::new(&"a".repeat(64)).unwrap().subject(&"x".repeat(200));
        assert!(longest.len() <= 340, "{}", longest.len());
    }

    proptest! {
        #[test]
        fn each_topic_comes_back_and_each_subject_is_plain(topic in any::<String>()) {
            let subject = map().subject(&topic);
            prop_assert!(is_plain(&subject));
            let named = topic.len() <= TOPIC_BYTES_MAX;
            let expected = if named { SubjectTopic::Named(topic) } else { SubjectTopic::Hashed };
            prop_assert_eq!(map().topic(&subject), Some(expected));
        }

        #[test]
        fn different_topics_have_different_subjects(
            (one, other) in any::<(String, String)>(),
        ) {
            prop_assert_eq!(one == other, map().subject(&one) == map().subject(&other));
        }

        #[test]
        fn a_subject_that_is_one_of_a_topic_is_that_of_this_topic(code in "[A-Za-z0-9_.-]{0,40}") {
            let subject = format!("a.b.v1.t.{code}");
            if let Some(SubjectTopic::Named(topic)) = map().topic(&subject) {
                prop_assert_eq!(map().subject(&topic), subject);
            }
        }
    }
}
