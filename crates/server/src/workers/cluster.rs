//! A server as a node of a cluster.

use std::{io, sync::Arc};

use super::server::Server;
use crate::{
    api::{Options, OutMessage},
    bus::{Arrived, Cluster, Node},
    handler::Handler,
    mailbox::{ForwardedBatch, TopicOwners, WorkerCommand},
};

impl<H: Handler, F: Fn(windlass::stream::Worker) -> H + Send + Sync + 'static> Server<F> {
    /// Makes the server a node on a bus: what is published to a topic goes to the other nodes too.
    /// The module [`bus`](crate::bus) states the guarantees.
    ///
    /// ```
    /// use windlass_server::{Options, Server, bus::{Cluster, MemoryNetwork}};
    /// # use windlass_server::{Connection, Handler, Message};
    /// # use windlass_server::http::{Accept, Reject, UpgradeRequest};
    /// # struct Chat;
    /// # impl Handler for Chat {
    /// #     type Data = ();
    /// #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
    /// #         Ok(Accept::new(()))
    /// #     }
    /// #     fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
    /// # }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let network = MemoryNetwork::new(7);
    /// let running = Server::new(Options::new(), |_worker| Chat)
    ///     .cluster(Cluster::new(network.bus()))
    ///     .listen(([127, 0, 0, 1], 0).into())
    ///     .start()?;
    /// assert!(running.stats_handle().cluster_stats().is_some());
    /// running.stop();
    /// running.join()
    /// # }
    /// ```
    pub fn cluster(mut self, cluster: Cluster) -> Self {
        self.cluster = Some(cluster);
        self
    }
}

/// Starts the bus of a node. What arrives goes to the workers' mailboxes.
pub(super) fn start_node(
    node: &Arc<Node>,
    workers: Vec<windlass_flow::Sender<WorkerCommand>>,
    owners: Option<Arc<TopicOwners>>,
    options: &Options,
) -> io::Result<()> {
    let weight_max = options.sender_bounds.bytes_max;
    node.start(Box::new(move |indexes, arrived| {
        let Arrived { topic, is_text, payload } = *arrived;
        let message = OutMessage::checked(is_text, payload);
        let batch = Arc::new(ForwardedBatch::of_node(topic, &message, weight_max));
        if let Some(owner) = owners.as_ref().and_then(|owners| owners.owner_of(topic)) {
            // All workers with receivers lose it if the owner has no room.
            let pushed = workers[usize::from(owner)].try_push(WorkerCommand::ToOwner(batch));
            return pushed.map_or(indexes.len() as u64, |()| 0);
        }
        let queues = indexes.iter().filter_map(|index| workers.get(usize::from(*index)));
        let push = |queue: &windlass_flow::Sender<WorkerCommand>| {
            queue.try_push(WorkerCommand::ForwardedBatch(Arc::clone(&batch)))
        };
        queues.map(push).filter(Result::is_err).count() as u64
    }))
}
