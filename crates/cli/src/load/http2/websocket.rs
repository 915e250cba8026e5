//! A WebSocket as a stream: messages are sent when they are due, and every answer is checked.

use std::{pin::pin, rc::Rc};

use windlass_server::printable;
use windlass_task::{
    Either, JoinHandle, race, spawn,
    time::{Sleep, sleep_until, timeout},
};
use windlass_websocket::{CloseCode, RecvError, SendError, Transport, WebSocket};
use windlass_ws::MessageRef;

use super::{late, open::Connection, stream::LoadStream};
use crate::load::{
    fault::{Answer, Fault, FaultKind},
    schedule::Nanos,
};

impl LoadStream {
    /// Starts the task of a WebSocket. The connection lives as long as its streams.
    pub(super) fn converse<S: Transport + 'static>(
        mut self,
        mut socket: WebSocket<S>,
        connection: &Rc<Connection>,
    ) -> JoinHandle<()> {
        let connection = Rc::clone(connection);
        spawn(async move {
            let mut ended = self.exchange_messages(&mut socket).await;
            if ended.is_ok() {
                ended = self.close(&mut socket).await;
            }
            self.end(ended);
            drop((socket, connection));
        })
    }

    async fn exchange_messages<S: Transport>(
        &mut self,
        socket: &mut WebSocket<S>,
    ) -> Result<(), Fault> {
        let shared = Rc::clone(&self.shared);
        let clock = shared.run_state.clock;
        let mut change = pin!(shared.change.next());
        let mut wake = pin!(None::<Sleep>);
        let mut waits_until = Nanos::MAX;
        loop {
            let now = shared.now();
            let was_idle = self.sequence.outstanding() == 0;
            while let Some(number) = self.next(now) {
                match shared.pool.message(self.sequence.connection(), number) {
                    MessageRef::Binary(bytes) => socket.feed(bytes).await,
                    MessageRef::Text(text) => socket.feed(text).await,
                }
                .map_err(send_fault)?;
            }
            if was_idle {
                self.since = now;
            }
            let is_at_end = self.is_at_end(now);
            if is_at_end && self.sequence.outstanding() == 0 {
                return Ok(());
            }
            self.check_timeout(now)?;
            let deadline = match self.sequence.outstanding() {
                0 => Nanos::MAX,
                _ => self.deadline(),
            };
            let next = deadline.min(self.next_moment().unwrap_or(Nanos::MAX));
            // A later moment waits for the earlier one to pass.
            if next < waits_until || waits_until <= now {
                wake.set(clock.instant(next).filter(|_| next < Nanos::MAX).map(sleep_until));
                waits_until = next;
            }
            let waking = async {
                match wake.as_mut().as_pin_mut() {
                    Some(sleep) => sleep.await,
                    None => std::future::pending().await,
                }
            };
            match race(socket.recv(), race(waking, change.as_mut())).await {
                Either::First(Ok(Some(message))) => {
                    let now = shared.now();
                    let answer = Answer { bytes: message.as_bytes(), is_text: message.is_text() };
                    self.exchange(now, |exchange| exchange.message(answer))?;
                    self.since = now;
                }
                Either::First(Ok(None)) => return Err(closed_early(socket)),
                Either::First(Err(error)) => return Err(recv_fault(error)),
                Either::Second(Either::First(())) => waits_until = 0,
                Either::Second(Either::Second(())) => change.set(shared.change.next()),
            }
        }
    }

    async fn close<S: Transport>(&self, socket: &mut WebSocket<S>) -> Result<(), Fault> {
        let limit = self.shared.plan.args.timeout;
        match timeout(limit, socket.close(CloseCode::NORMAL, "")).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Fault::new(FaultKind::NotClosed, error)),
            Err(_) => Err(late(FaultKind::NotClosed, "answer to the Close frame", limit)),
        }
    }
}

fn send_fault(error: SendError) -> Fault {
    Fault::new(FaultKind::Broken, error)
}

fn recv_fault(error: RecvError) -> Fault {
    let kind = match &error {
        RecvError::Violation(_) => FaultKind::Protocol,
        RecvError::Abnormal | RecvError::Cut => FaultKind::ClosedEarly,
        _ => FaultKind::Broken,
    };
    Fault::new(kind, error)
}

fn closed_early<S: Transport>(socket: &WebSocket<S>) -> Fault {
    let mut text = "the server has closed the connection".to_owned();
    if let Some(close) = socket.peer_close() {
        match close.code {
            Some(code) => text = format!("{text} with code {code}"),
            None => text += " without a code",
        }
        if !close.reason.is_empty() {
            text = format!("{text}: {}", printable(&close.reason));
        }
    }
    Fault::new(FaultKind::ClosedEarly, text)
}
