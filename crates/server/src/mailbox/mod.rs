//! How other threads and other workers reach a service: commands in a bounded mailbox.

mod command;
mod handle;
mod inspection;
mod open_connections;
mod other_workers;
mod reconfiguration;
mod sender;
mod stats_handle;
mod topic_owners;

pub(crate) use command::{ForwardedBatch, WorkerCommand};
pub(crate) use handle::{DrainRequest, WorkerHandle, WorkerMailbox};
pub use inspection::Inspector;
pub(crate) use inspection::{Found, Inspection, InspectionTask};
pub(crate) use other_workers::OtherWorkers;
pub(crate) use reconfiguration::Reconfiguration;
pub(crate) use sender::WorkerQueue;
pub use sender::{Sender, SenderError};
pub use stats_handle::StatsHandle;
pub(crate) use topic_owners::TopicOwners;
