//! Text in shared bytes.

use std::{borrow::Cow, fmt, ops::Deref, str::Utf8Error};

use bytes::Bytes;

/// Text in [`Bytes`]: a clone shares them, and costs a count.
///
/// ```
/// use windlass_websocket::Utf8Bytes;
///
/// let text = Utf8Bytes::from("zwölf");
/// assert_eq!((text.len(), text.as_str()), (6, "zwölf"));
/// ```
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Utf8Bytes {
    /// UTF-8.
    bytes: Bytes,
}

impl Utf8Bytes {
    /// Text that is known to be UTF-8, because the engine has checked it.
    pub(crate) fn from_checked(bytes: Bytes) -> Self {
        debug_assert!(std::str::from_utf8(&bytes).is_ok());
        Self { bytes }
    }

    /// Text that lives as long as the program, without a copy.
    #[must_use]
    pub const fn from_static(text: &'static str) -> Self {
        Self { bytes: Bytes::from_static(text.as_bytes()) }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        checked_str(&self.bytes)
    }

    /// The bytes of the text, shared.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The bytes of the text.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

/// The text in bytes that were checked to be UTF-8.
#[allow(unsafe_code, reason = "a second check of a long text takes as long as copying it")]
pub(crate) fn checked_str(bytes: &[u8]) -> &str {
    debug_assert!(std::str::from_utf8(bytes).is_ok());
    // SAFETY: The callers are `Utf8Bytes`, whose constructors take `str`, checked bytes, or bytes
    // of a text message; and `Received`, for a text message that is unchanged, or was checked again
    // after a change. The engine yields a text message only if its bytes are UTF-8.
    unsafe { std::str::from_utf8_unchecked(bytes) }
}

impl Deref for Utf8Bytes {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Utf8Bytes {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl From<&str> for Utf8Bytes {
    fn from(text: &str) -> Self {
        Self { bytes: Bytes::copy_from_slice(text.as_bytes()) }
    }
}

impl From<String> for Utf8Bytes {
    fn from(text: String) -> Self {
        Self { bytes: text.into() }
    }
}

impl From<&String> for Utf8Bytes {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<Utf8Bytes> for Bytes {
    fn from(text: Utf8Bytes) -> Self {
        text.bytes
    }
}

impl TryFrom<Vec<u8>> for Utf8Bytes {
    type Error = Utf8Error;

    fn try_from(bytes: Vec<u8>) -> Result<Self, Utf8Error> {
        Bytes::from(bytes).try_into()
    }
}

impl TryFrom<Bytes> for Utf8Bytes {
    type Error = Utf8Error;

    fn try_from(bytes: Bytes) -> Result<Self, Utf8Error> {
        std::str::from_utf8(&bytes)?;
        Ok(Self { bytes })
    }
}

macro_rules! impl_eq {
    ($($other:ty),+) => {
        $(
            impl PartialEq<$other> for Utf8Bytes {
                fn eq(&self, other: &$other) -> bool {
                    let other: &str = other.as_ref();
                    self.as_str() == other
                }
            }
        )+
    };
}

impl_eq!(str, &str, String, &String, Cow<'_, str>);

impl fmt::Debug for Utf8Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for Utf8Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}
