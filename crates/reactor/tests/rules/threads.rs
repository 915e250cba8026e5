//! Rule 4, and which types stay on one thread: asserted when this file is compiled. (A message of
//! the compiler's would list every field that keeps a type on its thread, and change with each.)

use windlass::{
    Embedded, MockReactor, Reactor, SignalSet, Subscription, Turn,
    stream::{Input, Stream},
};

/// Two ways to have `some_item` if the type implements the trait, and then the compiler cannot
/// choose.
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
assert_lacks!(Send: Turn<'static, Reactor>, Turn<'static, MockReactor>, Stream<'static>, Input<'static>);
assert_lacks!(Sync: Turn<'static, Reactor>, Turn<'static, MockReactor>, Stream<'static>, Input<'static>);
assert_lacks!(Clone: Reactor, Turn<'static, Reactor>, Turn<'static, MockReactor>, Stream<'static>, Input<'static>);
