//! A server's end of a connection.

use std::ffi::{c_char, c_void};
use std::rc::Rc;

use windlass_bench_driver::Error;
use windlass_bench_driver::websocket::{EngineSubject, READ_MAX, Wire};

unsafe extern "C" {
    safe fn windlass_bench_connection_bytes() -> usize;
    safe fn windlass_bench_padding_bytes() -> usize;
    safe fn windlass_bench_loop_new() -> *mut c_void;
    fn windlass_bench_loop_free(this: *mut c_void);
    fn windlass_bench_connection_new(this: *mut c_void, wire: *const c_void) -> *mut c_void;
    fn windlass_bench_connection_free(connection: *mut c_void);
    fn windlass_bench_connection_data(
        connection: *mut c_void,
        data: *mut c_char,
        length: u32,
    ) -> bool;
}

/// # Safety
///
/// `wire` is alive and `data` has `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn windlass_bench_send(wire: *const Wire, data: *const u8, length: usize) {
    // SAFETY: by the contract it has so many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(data, length) };
    // SAFETY: by the contract it is alive.
    unsafe { &*wire }.send(bytes);
}

/// # Safety
///
/// `wire` is alive; `header` has `header_length` bytes and `data` has `length`.
#[unsafe(no_mangle)]
unsafe extern "C" fn windlass_bench_send2(
    wire: *const Wire,
    header: *const u8,
    header_length: usize,
    data: *const u8,
    length: usize,
) {
    // SAFETY: by the contract it has so many bytes.
    let header = unsafe { std::slice::from_raw_parts(header, header_length) };
    // SAFETY: by the contract it has so many bytes.
    let data = unsafe { std::slice::from_raw_parts(data, length) };
    // SAFETY: by the contract it is alive.
    unsafe { &*wire }.send_vectored([header, data].into_iter());
}

/// The loop's receive buffer and cork buffer.
pub(crate) struct Loop {
    handle: Rc<Handle>,
    /// Padding, the bytes of a read, padding.
    buffer: Vec<u8>,
}

struct Handle(*mut c_void);

impl Default for Loop {
    fn default() -> Self {
        let padding = padding();
        Self {
            handle: Rc::new(Handle(windlass_bench_loop_new())),
            buffer: vec![0; READ_MAX + 2 * padding],
        }
    }
}

/// Number of bytes before and after the received ones to which the parser may write.
fn padding() -> usize {
    windlass_bench_padding_bytes().next_multiple_of(32)
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it was made by `windlass_bench_loop_new`, and the connections that use it hold
        // this handle.
        unsafe { windlass_bench_loop_free(self.0) };
    }
}

/// A connection. The wire is boxed, because C++ keeps its address.
pub(crate) struct Connection {
    handle: *mut c_void,
    wire: Box<Wire>,
    _thread: Rc<Handle>,
}

impl EngineSubject for Connection {
    type Thread = Loop;

    /// The size of `WebSocketData` without the streams of zlib and the subscriber, and of two
    /// addresses that its sockets keep for it.
    fn engine_bytes() -> usize {
        windlass_bench_connection_bytes()
    }

    fn new(wire: Wire, thread: &mut Loop) -> Result<Self, Error> {
        let wire = Box::new(wire);
        // SAFETY: the loop lives as long as the connection, which holds it, and the wire stays
        // where it is in its box.
        let handle =
            unsafe { windlass_bench_connection_new(thread.handle.0, (&raw const *wire).cast()) };
        Ok(Self { handle, wire, _thread: Rc::clone(&thread.handle) })
    }

    fn round(&mut self, thread: &mut Loop) -> Result<(), Error> {
        let padding = padding();
        loop {
            let room = thread.buffer.len() - padding;
            let length = self.wire.recv(&mut thread.buffer[padding..room]);
            if length == 0 {
                return Ok(());
            }
            let data = thread.buffer[padding..].as_mut_ptr().cast();
            // SAFETY: the connection is alive, and the received bytes have the padding on both
            // sides that the parser needs.
            if !unsafe { windlass_bench_connection_data(self.handle, data, length as u32) } {
                return Err("the connection was closed for a violation".into());
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: it was made by `windlass_bench_connection_new` and is given back once.
        unsafe { windlass_bench_connection_free(self.handle) };
    }
}
