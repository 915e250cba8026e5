//! Every error that `?` meets in a program goes into an error of any kind. Checked by the compiler.

use windlass_server::{
    ControlError, OptionsError, SendError, SenderError, StartError, SubscribeError,
    bus::{BusError, EnvelopeError, PrefixError},
    http::{HostError, HostsError, OriginError, OriginsError, PermitError},
};

const _: fn() = || {
    fn is_for_any_program<E: std::error::Error + Send + Sync + 'static>() {}
    is_for_any_program::<BusError>();
    is_for_any_program::<ControlError>();
    is_for_any_program::<EnvelopeError>();
    is_for_any_program::<HostError>();
    is_for_any_program::<HostsError>();
    is_for_any_program::<OptionsError>();
    is_for_any_program::<OriginError>();
    is_for_any_program::<OriginsError>();
    is_for_any_program::<PermitError>();
    is_for_any_program::<PrefixError>();
    is_for_any_program::<SendError>();
    is_for_any_program::<SenderError>();
    is_for_any_program::<StartError>();
    is_for_any_program::<SubscribeError>();
};
