//! What all sockets of a thread share: the engine's scratch, and buffers that no socket needs.
//!
//! A socket holds a buffer from the moment bytes arrive until they are processed. An idle one holds
//! none.

use std::cell::{Cell, RefCell};

use windlass_ws::Scratch;

/// The length of a buffer for reading, in bytes.
pub(crate) const READ_BUFFER_LEN: usize = 64 << 10;

/// The most buffers of each kind that are kept for later.
const SPARES_MAX: usize = 16;

/// The largest output buffer that is kept, in bytes.
const OUTPUT_KEPT_MAX: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) scratch: Scratch,
    /// The compressors of prepared messages.
    #[cfg(feature = "deflate")]
    pub(crate) pool: windlass_ws::deflate::CodecPool,
    /// More of them, for messages that are held for long.
    read_buffers: Vec<Box<[u8]>>,
}

thread_local! {
    /// The buffer that is used next.
    static READ_BUFFER: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
    /// Empty outputs, which are taken while the rest is in use.
    static OUTPUTS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static SHARED: Cell<Option<Box<Shared>>> = const { Cell::new(None) };
}

/// Runs `use_it` with the thread's state. A transport that is itself a WebSocket gets another state
/// while it is in use.
// As calls, this and what it runs for a received message would be a noticeable part of an echo.
#[inline(always)]
pub(crate) fn with<R>(use_it: impl FnOnce(&mut Shared) -> R) -> R {
    // The thread may be about to end, and its state gone.
    let mut shared = SHARED.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let result = use_it(&mut shared);
    let _ = SHARED.try_with(|place| place.set(Some(shared)));
    result
}

#[inline]
pub(crate) fn take_read_buffer() -> Box<[u8]> {
    match READ_BUFFER.try_with(Cell::take) {
        Ok(Some(buffer)) => buffer,
        _ => take_another_buffer(),
    }
}

#[cold]
fn take_another_buffer() -> Box<[u8]> {
    with(|shared| shared.read_buffers.pop())
        .unwrap_or_else(|| vec![0; READ_BUFFER_LEN].into_boxed_slice())
}

/// Takes back a buffer of any length.
#[inline]
pub(crate) fn give_read_buffer(buffer: Box<[u8]>) {
    if buffer.len() == READ_BUFFER_LEN {
        if let Ok(Some(other)) = READ_BUFFER.try_with(|place| place.replace(Some(buffer))) {
            give_another_buffer(other);
        }
    }
}

#[cold]
fn give_another_buffer(buffer: Box<[u8]>) {
    with(|shared| {
        if shared.read_buffers.len() < SPARES_MAX {
            shared.read_buffers.push(buffer);
        }
    });
}

/// An empty buffer.
pub(crate) fn take_output() -> Vec<u8> {
    OUTPUTS.try_with(|outputs| outputs.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

pub(crate) fn give_output(mut output: Vec<u8>) {
    if output.capacity() == 0 || output.capacity() > OUTPUT_KEPT_MAX {
        return;
    }
    output.clear();
    let _ = OUTPUTS.try_with(|outputs| {
        let mut outputs = outputs.borrow_mut();
        if outputs.len() < SPARES_MAX {
            outputs.push(output);
        }
    });
}
