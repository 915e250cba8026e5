//! Execution of the commands in a worker's mailbox.

use std::{io, rc::Rc};

use windlass::{Turn, interest};
use windlass_flow::Mailbox;

use super::host::ServiceHost;
use crate::{
    api::NO_CONN,
    mailbox::{ForwardedBatch, WorkerCommand},
    pubsub::is_reserved,
    state::ServiceState,
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
            if let Some(deadline) = state.worker.take_drain_request() {
                state.drain(&mut turn, deadline);
            }
            state.relieve_others(&mut turn);
            for command in mailbox.drain(state.options.sender_messages_per_turn) {
                state.execute(&mut turn, command);
            }
            if state.worker.take_stats_request() {
                state.publish_stats(&mut turn);
            }
            mailbox.latch().rearm();
        })
        .register_into(reactor)?;
    Ok(())
}

impl ServiceState {
    /// Executes a command of another thread. A failure is not reported, because the connection may
    /// have gone in the meantime.
    fn execute(self: &Rc<Self>, turn: &mut Turn<'_>, command: WorkerCommand) {
        match command {
            WorkerCommand::Send { id, message } => _ = self.send_prepared(turn, id, &message),
            WorkerCommand::Close { id, code, reason } => _ = self.close(turn, id, code, &reason),
            WorkerCommand::Publish { topic, .. } if is_reserved(&topic) => {}
            // A sender gives it to the owner alone.
            WorkerCommand::Publish { topic, message } if self.is_ordered(&topic) => {
                self.publish(turn, NO_CONN, &topic, message.to_out());
            }
            WorkerCommand::Publish { topic, message } => {
                // Every worker receives the publication, and only one counts it.
                let is_counted = self.tables.borrow().conns.is_first_worker();
                self.stats.published.add(u64::from(is_counted));
                let tables = &mut *self.tables.borrow_mut();
                if is_counted {
                    let (others, message) = (&mut tables.other_workers, message.to_out());
                    others.publish_to_nodes(&topic, &message, &self.options, &self.stats);
                }
                tables.publish(self, turn, NO_CONN, &topic, message.to_out());
            }
            WorkerCommand::ForwardedBatch(batch) => self.publish_batch(turn, &batch),
            WorkerCommand::ToOwner(batch) => {
                let mut tables = self.tables.borrow_mut();
                tables.other_workers.relay(&batch, &self.options, &self.stats);
                drop(tables);
                self.publish_batch(turn, &batch);
            }
        }
    }

    fn is_ordered(&self, topic: &str) -> bool {
        self.tables.borrow().other_workers.is_ordered(topic)
    }

    /// Publishes to the connections of this worker.
    fn publish_batch(self: &Rc<Self>, turn: &mut Turn<'_>, batch: &ForwardedBatch) {
        let tables = &mut *self.tables.borrow_mut();
        for (sender, message) in batch.iter() {
            // If the sender is gone by now, all get the message.
            let from = sender.and_then(|id| tables.conns.find(id)).unwrap_or(NO_CONN);
            tables.publish(self, turn, from, &batch.topic, message);
        }
    }
}
