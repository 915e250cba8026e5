//! Hints to the processor about memory that is read soon.

#![allow(unsafe_code, reason = "the intrinsic takes an address")]

/// The size of a cache line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// Tells the processor that a value is read soon. It has no other effect.
#[inline(always)]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

        let first = core::ptr::from_ref(value).cast::<i8>();
        let last = size_of::<T>().saturating_sub(1);
        for offset in (0..last).step_by(LINE).chain([last]) {
            // SAFETY: a prefetch changes no memory and faults for no address. Every x86-64
            // processor has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(offset)) };
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}
