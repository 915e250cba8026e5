//! What all sockets of a thread share: the engine's scratch, and buffers that no idle socket needs.

use std::{
    cell::{Cell, RefCell},
    sync::{Arc, OnceLock},
    time::Instant,
};

use windlass_ws::{Config, MessageBuffer, Role, Scratch};

/// The length of a buffer for reading, in bytes.
pub(crate) const READ_BUFFER_LEN: usize = 64 << 10;

/// The most buffers of each kind that are kept for later.
const SPARES_MAX: usize = 16;

/// The largest output buffer that is kept, in bytes.
const OUTPUT_KEPT_MAX: usize = 256 << 10;

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
    /// The buffer that is used next, and more of them.
    static READ_BUFFER: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
    static READ_BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
    static OUTPUTS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    /// The configurations that were used last: of a server, and of a client.
    static CONFIGS: RefCell<[Option<Arc<Config>>; 2]> = const { RefCell::new([None, None]) };
}

/// Runs `use_it` with the thread's scratch. A stream that is itself a WebSocket gets another one
/// while it is in use.
// As a call it would return its result in memory.
#[inline(always)]
pub(crate) fn with_scratch<R>(use_it: impl FnOnce(&mut Scratch) -> R) -> R {
    // The thread may be about to end, and its scratch gone.
    let mut scratch = SCRATCH.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let result = use_it(&mut scratch);
    let _ = SCRATCH.try_with(|place| place.set(Some(scratch)));
    result
}

/// Keeps the buffer of a message for later ones.
#[cold]
pub(crate) fn recycle(message: MessageBuffer) {
    with_scratch(|scratch| scratch.recycle(message));
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
    let spare = READ_BUFFERS.try_with(|buffers| buffers.borrow_mut().pop()).ok().flatten();
    spare.unwrap_or_else(|| vec![0; READ_BUFFER_LEN].into_boxed_slice())
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
    let _ = READ_BUFFERS.try_with(|buffers| {
        let mut buffers = buffers.borrow_mut();
        if buffers.len() < SPARES_MAX {
            buffers.push(buffer);
        }
    });
}

/// An empty buffer.
pub(crate) fn take_output() -> Vec<u8> {
    OUTPUTS.try_with(|outputs| outputs.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

pub(crate) fn give_output(mut output: Vec<u8>) {
    if output.capacity() > OUTPUT_KEPT_MAX {
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

/// A configuration of the engine with these contents, shared with the sockets that had the same.
pub(crate) fn config(config: Config) -> Arc<Config> {
    let is_same = |other: &Config| {
        other.limits == config.limits && other.accept_unmasked == config.accept_unmasked
    };
    let place = usize::from(matches!(config.role, Role::Client { .. }));
    CONFIGS
        .try_with(|configs| {
            let last = &mut configs.borrow_mut()[place];
            match last {
                Some(last) if is_same(last) => Arc::clone(last),
                _ => Arc::clone(last.insert(Arc::new(config))),
            }
        })
        .unwrap_or_else(|_| Arc::new(config))
}

/// The second of the clock, where there is one. It is never 0, which is that of a socket before its
/// first control frame.
pub(crate) fn second() -> Option<u32> {
    if cfg!(all(target_family = "wasm", target_os = "unknown")) {
        return None;
    }
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed().as_secs();
    Some((elapsed as u32).wrapping_add(1))
}

/// Unpredictable bytes for masking keys and the handshake's key.
///
/// # Panics
/// If the system has none.
pub(crate) fn entropy(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system's source of random bytes works");
}
