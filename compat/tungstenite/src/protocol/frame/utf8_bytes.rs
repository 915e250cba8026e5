//! Text in shared bytes.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    str::{self, Utf8Error},
};

use bytes::{Bytes, BytesMut};

/// Text in [`Bytes`]: a clone shares them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Utf8Bytes(
    /// UTF-8, checked by whoever made this value.
    Bytes,
);

impl Utf8Bytes {
    /// Text that lives as long as the program, without a copy.
    #[inline]
    pub const fn from_static(str: &'static str) -> Self {
        Self(Bytes::from_static(str.as_bytes()))
    }

    /// The text.
    #[inline]
    pub fn as_str(&self) -> &str {
        checked_str(&self.0)
    }

    /// Text in bytes that are not checked.
    ///
    /// # Safety
    ///
    /// The bytes must be UTF-8.
    #[allow(unsafe_code, reason = "the interface has this function")]
    pub unsafe fn from_bytes_unchecked(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Text that the engine has checked.
    pub(crate) fn from_checked(bytes: Bytes) -> Self {
        debug_assert!(str::from_utf8(&bytes).is_ok());
        Self(bytes)
    }
}

/// The text in bytes that were checked to be UTF-8.
#[inline]
#[allow(unsafe_code, reason = "a second check of a long text takes as long as copying it")]
pub(crate) fn checked_str(bytes: &[u8]) -> &str {
    debug_assert!(str::from_utf8(bytes).is_ok());
    // SAFETY: The bytes are UTF-8 (str::from_utf8_unchecked) from both callers. `Utf8Bytes`:
    // each safe constructor takes a string, checks the bytes, or takes those of a text that the
    // engine or `WholeMessage` has checked (`WebSocketContext::copied` keeps none that failed);
    // `from_bytes_unchecked` demands it of its caller; `Bytes` never change. And `__lent`, for a
    // text that the engine has checked, whose bytes are private to `Input`, which forgets the
    // message before more is processed or read.
    unsafe { str::from_utf8_unchecked(bytes) }
}

impl Deref for Utf8Bytes {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<[u8]> for Utf8Bytes {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<str> for Utf8Bytes {
    #[inline]
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<Bytes> for Utf8Bytes {
    #[inline]
    fn as_ref(&self) -> &Bytes {
        &self.0
    }
}

impl Borrow<str> for Utf8Bytes {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl Hash for Utf8Bytes {
    /// As `str` does, because it can be borrowed as one.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialOrd for Utf8Bytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Utf8Bytes {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl<T> PartialEq<T> for Utf8Bytes
where
    for<'a> &'a str: PartialEq<T>,
{
    #[inline]
    fn eq(&self, other: &T) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Display for Utf8Bytes {
    #[inline]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl TryFrom<Bytes> for Utf8Bytes {
    type Error = Utf8Error;

    #[inline]
    fn try_from(bytes: Bytes) -> Result<Self, Utf8Error> {
        str::from_utf8(&bytes)?;
        Ok(Self(bytes))
    }
}

impl TryFrom<BytesMut> for Utf8Bytes {
    type Error = Utf8Error;

    #[inline]
    fn try_from(bytes: BytesMut) -> Result<Self, Utf8Error> {
        bytes.freeze().try_into()
    }
}

impl TryFrom<Vec<u8>> for Utf8Bytes {
    type Error = Utf8Error;

    #[inline]
    fn try_from(bytes: Vec<u8>) -> Result<Self, Utf8Error> {
        Bytes::from(bytes).try_into()
    }
}

impl From<String> for Utf8Bytes {
    #[inline]
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&str> for Utf8Bytes {
    #[inline]
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<&String> for Utf8Bytes {
    #[inline]
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<Utf8Bytes> for Bytes {
    #[inline]
    fn from(text: Utf8Bytes) -> Self {
        text.0
    }
}
