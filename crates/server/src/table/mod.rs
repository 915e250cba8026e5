//! The connection table: what code outside the handler of a connection knows of it.

mod close_info;
mod conn_state;
mod conn_table;

pub(crate) use close_info::{CloseInfo, CloseInfos};
pub(crate) use conn_state::{
    ConnState, HALT_CLOSING, HALT_CODEC, HALT_HELD, HALT_OUTPUT_MAX, HALT_PAUSED, HALT_QUEUED,
    HALTS, HAS_DEFLATE, HAS_RATE, LARGE_LEN,
};
pub(crate) use conn_table::{ConnEntry, ConnFlags, ConnTable, NO_SUBSCRIPTION};
