//! Hints to the processor about memory that is read soon.

#![allow(unsafe_code, reason = "the intrinsic takes an address")]

/// Tells the processor that a value is read soon. It has no other effect.
#[inline(always)]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

        let first = core::ptr::from_ref(value).cast::<i8>();
        let last = first.wrapping_add(size_of::<T>().saturating_sub(1));
        // SAFETY: a prefetch changes no memory and faults for no address. Every x86-64 processor
        // has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(first) };
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(last) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}
