//! What the code of streams is given of the reactor.

use crate::{kernel::Kernel, registry::groups::Groups, stream::StreamTable, time::timing::Timing};

/// The parts of a reactor that streams work on.
pub(crate) struct ReactorParts<'r> {
    pub(crate) streams: &'r mut StreamTable,
    pub(crate) kernel: &'r mut Kernel,
    pub(crate) timing: &'r mut Timing,
    pub(crate) groups: &'r mut Groups,
}
