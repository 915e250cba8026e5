//! Runs a property without a printed panic, and says what it has panicked with.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

/// How a run has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Panic {
    pub(super) message: String,
    /// File and line.
    pub(super) location: String,
}

thread_local! {
    static IS_SILENT: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<Option<Panic>> = const { RefCell::new(None) };
}

/// Runs `property`; the panic it ends with is not printed.
pub(super) fn run(property: impl FnOnce()) -> Result<(), Panic> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_SILENT.get() {
                return previous(info);
            }
            // The first panic is the cause; destructors may panic because of it.
            let panic = describe(info);
            LAST.with_borrow_mut(|last| _ = last.get_or_insert(panic));
        }));
    });
    let was_silent = IS_SILENT.replace(true);
    LAST.set(None);
    let result = panic::catch_unwind(AssertUnwindSafe(property));
    IS_SILENT.set(was_silent);
    match (result, LAST.take()) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(panic)) => Err(panic),
        // A panic that was resumed calls no hook.
        (Err(payload), None) => {
            Err(Panic { message: text(payload.as_ref()), location: "a resumed panic".to_owned() })
        }
    }
}

fn describe(info: &PanicHookInfo<'_>) -> Panic {
    let location = info.location().map_or_else(String::new, ToString::to_string);
    Panic { message: text(info.payload()), location }
}

fn text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_panic_is_reported() {
        struct Second;
        impl Drop for Second {
            fn drop(&mut self) {
                _ = panic::catch_unwind(|| panic!("second"));
            }
        }
        let failed = run(|| {
            let _second = Second;
            panic!("first {}", 1);
        });
        let failed = failed.expect_err("it panics");
        assert_eq!(failed.message, "first 1");
        assert!(failed.location.contains("silence.rs:"), "{}", failed.location);
        assert_eq!(run(|| ()), Ok(()));
    }

    #[test]
    fn a_resumed_panic_fails_too() {
        let failed = run(|| panic::resume_unwind(Box::new("kept")));
        assert_eq!(failed.expect_err("it panics").message, "kept");
    }
}
