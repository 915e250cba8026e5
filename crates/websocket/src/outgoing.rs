//! Messages to send.

use bytes::Bytes;
use windlass_ws::MessageRef;

use crate::{Message, Prepared, Utf8Bytes};

/// A message to send. `send` and `feed` take everything that becomes one: a `&str` or `&[u8]`,
/// which are borrowed; a `String`, `Vec<u8>`, [`Bytes`], [`Utf8Bytes`] or [`Message`], which a
/// server sends without a copy if they are long; a [`Prepared`], which many sockets share.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Outgoing<'a> {
    /// A borrowed payload.
    Borrowed(MessageRef<'a>),
    /// An owned payload.
    Owned(Message),
    /// A message that was encoded before.
    Prepared(Prepared),
}

macro_rules! impl_from {
    ($($owned:ty),+) => {
        $(
            impl From<$owned> for Outgoing<'_> {
                fn from(payload: $owned) -> Self {
                    Self::Owned(payload.into())
                }
            }
        )+
    };
}

impl_from!(String, Utf8Bytes, Vec<u8>, Bytes, Message);

impl From<Prepared> for Outgoing<'_> {
    fn from(prepared: Prepared) -> Self {
        Self::Prepared(prepared)
    }
}

impl<'a, T> From<&'a T> for Outgoing<'a>
where
    T: ?Sized,
    MessageRef<'a>: From<&'a T>,
{
    fn from(message: &'a T) -> Self {
        Self::Borrowed(message.into())
    }
}
