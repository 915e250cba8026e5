//! Rule 4: asserts, when this file is compiled, which types stay on one thread. (A compile-fail
//! test would pin a message that lists every field that is not `Send`, and that changes with each
//! field.)

use windlass::{
    Embedded, MockReactor, Reactor, SignalSet, Subscription, Turn,
    stream::{Input, Stream},
};

/// Provides `some_item` twice if the type implements the trait. Then the call is ambiguous and does
/// not compile.
macro_rules! assert_lacks {
    ($trait:path: $($type:ty),+ $(,)?) => {
        $(const _: fn() = || {
            trait Ambiguous<A> {
                fn some_item() {}
            }
            impl<T: ?Sized> Ambiguous<()> for T {}
            #[allow(dead_code, reason = "that it exists is what is asked")]
            struct Implements;
            impl<T: ?Sized + $trait> Ambiguous<Implements> for T {}
            let _ = <$type as Ambiguous<_>>::some_item;
        };)+
    };
}

assert_lacks!(Send: Reactor, Embedded, SignalSet, Subscription<Reactor>);
assert_lacks!(Sync: Reactor, Embedded, SignalSet);
assert_lacks!(
    Send: Turn<'static, Reactor>,
    Turn<'static, MockReactor>,
    Stream<'static>,
    Input<'static>
);
assert_lacks!(
    Sync: Turn<'static, Reactor>,
    Turn<'static, MockReactor>,
    Stream<'static>,
    Input<'static>
);
assert_lacks!(
    Clone: Reactor,
    Turn<'static, Reactor>,
    Turn<'static, MockReactor>,
    Stream<'static>,
    Input<'static>
);
