//! The settings and the echo of yawc, over HTTP/1.1 and HTTP/2.

use futures_util::{FutureExt, SinkExt};
use windlass_bench_driver::server::{MESSAGE_MAX, Settings, Traffic};
use yawc::{DeflatePool, HttpStream, OpCode, Options, Result, WebSocket};

pub(crate) fn options(settings: &Settings) -> Options {
    let options = Options::default().with_utf8().with_limits(MESSAGE_MAX, 2 * MESSAGE_MAX);
    let options = match settings.traffic {
        Traffic::Idle => options.with_read_buffer_capacity(1024).with_write_buffer_capacity(1024),
        _ => options.with_read_buffer_capacity(128 << 10).with_backpressure_boundary(64 << 10),
    };
    if !settings.deflate {
        return options.without_compression();
    }
    options
        .with_balanced_compression()
        .server_no_context_takeover()
        .client_no_context_takeover()
        .with_deflate_pool(DeflatePool::new(64))
}

pub(crate) async fn run(socket: &mut WebSocket<HttpStream>, traffic: Traffic) -> Result<()> {
    match traffic {
        Traffic::Pipelined => echo_batches(socket).await,
        _ => echo_each(socket).await,
    }
}

async fn echo_each(socket: &mut WebSocket<HttpStream>) -> Result<()> {
    loop {
        let frame = socket.next_frame().await?;
        match frame.opcode() {
            OpCode::Text | OpCode::Binary => socket.send(frame).await?,
            OpCode::Close => return Ok(()),
            _ => {}
        }
    }
}

/// Answers all messages that are readable at once by one flush.
async fn echo_batches(socket: &mut WebSocket<HttpStream>) -> Result<()> {
    loop {
        let frame = match socket.next_frame().now_or_never() {
            Some(next) => next?,
            None => {
                socket.flush().await?;
                socket.next_frame().await?
            }
        };
        match frame.opcode() {
            OpCode::Text | OpCode::Binary => socket.feed(frame).await?,
            OpCode::Close => return Ok(()),
            _ => {}
        }
    }
}
