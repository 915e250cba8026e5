//! The server under test is tokio-tungstenite on windlass-task, on a thread of this process.
//!
//! The suite's cases then use the streams of windlass-task as such a library does: in parts of any
//! size, both ways at once, and until the end of each direction.

use futures_util::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::accept_async;
use windlass_task::{net::TcpStream, time::timeout};

use crate::echo_server::{END_MAX, end};

/// Echoes messages until the end, or the first violation of the protocol.
pub(super) async fn echo(stream: TcpStream) {
    let Ok(mut socket) = accept_async(stream).await else { return };
    while let Some(Ok(message)) = socket.next().await {
        if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
            break;
        }
    }
    let _ = timeout(END_MAX, end(socket.into_inner())).await;
}
