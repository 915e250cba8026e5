//! Execution of the commands in a worker's mailbox.

use std::{io, rc::Rc, sync::Arc};

use windlass::{Turn, interest};
use windlass_flow::{Latch, Mailbox};

use super::host::ServiceHost;
use crate::{
    api::NO_CONN,
    mailbox::{DrainRequest, WorkerCommand},
    pubsub::is_reserved,
    shared::Shared,
    state::{ServiceState, Tables},
};

/// Registers the mailbox with the loop.
pub(crate) fn register_mailbox(
    state: &Rc<ServiceState>,
    mut mailbox: Mailbox<WorkerCommand>,
    reactor: &mut impl ServiceHost,
) -> io::Result<()> {
    let state = Rc::clone(state);
    let latch = Arc::clone(state.shared.worker.latch());
    latch.rearm();
    let edge = interest().read().edge_triggered();
    let has_edges = reactor.supports(edge);
    let wanted = if has_edges { edge } else { interest().read() };
    wanted
        .with_fd(latch)
        .with_handler(move |latch: &mut Arc<Latch>, mut turn: Turn<'_>| {
            if !has_edges {
                latch.clear();
            }
            latch.awake();
            match state.shared.worker.take_drain_request() {
                Some(DrainRequest::Now(deadline)) => state.drain(&mut turn, deadline),
                Some(DrainRequest::HandOver(deadline)) => state.hand_over(&mut turn, deadline),
                None => {}
            }
            if let Some(new) = state.shared.worker.take_reconfiguration() {
                state.reconfigure(&mut turn, &new);
            }
            if state.shared.worker.take_inspection_request() {
                state.inspect(&mut turn);
            }
            let (shared, tables) = (&state.shared, &mut *state.tables.borrow_mut());
            for id in shared.worker.take_decided() {
                tables.conns.notify_handshake(id, &mut turn);
            }
            tables.relieve_others(shared, &mut turn);
            for command in mailbox.drain(shared.options.sender_messages_per_turn) {
                execute(tables, shared, &mut turn, command);
                tables.check_memory_if_grown(shared, &mut turn);
            }
            state.flush_later(tables, &mut turn);
            if shared.worker.take_stats_request() {
                state.publish_stats(tables, &mut turn);
            }
            latch.rearm();
        })
        .register_into(reactor)?;
    Ok(())
}

/// Executes a command of another thread. A failure is not reported, because the connection may have
/// gone in the meantime.
fn execute(tables: &mut Tables, shared: &Shared, turn: &mut Turn<'_>, command: WorkerCommand) {
    let Tables { conns, delivery, .. } = tables;
    match command {
        WorkerCommand::Send { id, message } => {
            _ = tables.send_prepared(shared, turn, id, &message);
        }
        WorkerCommand::Close { id, code, reason } => {
            _ = tables.close(shared, turn, id, code, &reason);
        }
        WorkerCommand::Publish { topic, .. } if is_reserved(&topic) => {}
        // A sender gives it to the owner alone.
        WorkerCommand::Publish { topic, message } if delivery.is_ordered(&topic) => {
            delivery.publish(conns, shared, turn, NO_CONN, &topic, message.to_out());
        }
        WorkerCommand::Publish { topic, message } => {
            delivery.publish_of_sender(conns, shared, turn, &topic, &message);
        }
        WorkerCommand::ForwardedBatch(batch) => {
            delivery.publish_forwarded(conns, shared, turn, &batch);
        }
        WorkerCommand::ToOwner(batch) => delivery.relay(conns, shared, turn, &batch),
    }
}
