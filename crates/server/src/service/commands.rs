//! Execution of the commands in a worker's mailbox.

use std::{io, rc::Rc};

use windlass::{Turn, interest};
use windlass_flow::Mailbox;

use super::host::ServiceHost;
use crate::{
    api::NO_CONN,
    mailbox::WorkerCommand,
    pubsub::is_reserved,
    state::{ServiceState, Tables},
};

/// Registers the mailbox with the loop.
pub(crate) fn register_mailbox(
    state: &Rc<ServiceState>,
    mailbox: Mailbox<WorkerCommand>,
    reactor: &mut impl ServiceHost,
) -> io::Result<()> {
    let state = Rc::clone(state);
    mailbox.latch().rearm();
    let edge = interest().read().edge_triggered();
    let has_edges = reactor.supports(edge);
    let wanted = if has_edges { edge } else { interest().read() };
    wanted
        .with_fd(mailbox)
        .with_handler(move |mailbox: &mut Mailbox<WorkerCommand>, mut turn: Turn<'_>| {
            if !has_edges {
                mailbox.latch().clear();
            }
            mailbox.latch().awake();
            if let Some(deadline) = state.shared.worker.take_drain_request() {
                state.drain(&mut turn, deadline);
            }
            state.relieve_others(&mut turn);
            for command in mailbox.drain(state.shared.options.sender_messages_per_turn) {
                execute(&state, &mut turn, command);
            }
            if state.shared.worker.take_stats_request() {
                state.publish_stats(&mut turn);
            }
            mailbox.latch().rearm();
        })
        .register_into(reactor)?;
    Ok(())
}

/// Executes a command of another thread. A failure is not reported, because the connection may have
/// gone in the meantime.
fn execute(state: &Rc<ServiceState>, turn: &mut Turn<'_>, command: WorkerCommand) {
    let shared = &state.shared;
    match command {
        WorkerCommand::Send { id, message } => {
            _ = state.send_prepared(turn, id, &message);
            return;
        }
        WorkerCommand::Publish { topic, .. } if is_reserved(&topic) => return,
        _ => {}
    }
    let tables = &mut *state.tables.borrow_mut();
    let Tables { conns, delivery, .. } = tables;
    match command {
        WorkerCommand::Send { .. } => {}
        WorkerCommand::Close { id, code, reason } => {
            _ = tables.close(shared, turn, id, code, &reason);
        }
        // A sender gives it to the owner alone.
        WorkerCommand::Publish { topic, message } if delivery.is_ordered(&topic) => {
            delivery.publish(conns, shared, turn, NO_CONN, (&topic, message.to_out()));
        }
        WorkerCommand::Publish { topic, message } => {
            delivery.publish_of_sender(conns, shared, turn, &topic, &message);
        }
        WorkerCommand::ForwardedBatch(batch) => {
            delivery.publish_forwarded(conns, shared, turn, &batch);
        }
        WorkerCommand::ToOwner(batch) => delivery.relay(conns, shared, turn, &batch),
    }
    state.flush_later(tables, turn);
}
