//! The values that an application passes and gets: messages, options, IDs, counts, errors.

mod closed;
mod error;
mod id;
mod inspection;
mod limit;
mod message;
mod options;
mod prepared;
mod printable;
mod rate;
mod rejected;
mod secret_hasher;
mod stats;
mod topic_name;

pub use closed::{CloseReason, Closed};
pub use error::{ControlError, SendError, StartError, SubscribeError};
pub use id::{ConnectionId, InvalidConnectionId};
pub(crate) use id::{GENERATION_MAX, INDEX_MAX, NO_CONN};
pub use inspection::{
    ConnectionOrder, ConnectionQuery, DisconnectTarget, Disconnected, Inspected, ListedConnection,
    ListedTopic,
};
pub use limit::Limit;
pub use message::{Message, OutMessage};
pub(crate) use options::PASS_OUTPUT_MAX;
pub use options::{Options, OptionsError, SlowConsumerPolicy};
pub use prepared::Prepared;
pub use printable::printable;
pub(crate) use rate::Bucket;
pub use rate::{Rate, RateLimits};
pub use rejected::Rejected;
pub(crate) use secret_hasher::SecretHasher;
pub use stats::ServerStats;
pub(crate) use stats::{Counter, Counters, SentMessages};
pub(crate) use topic_name::TopicName;
