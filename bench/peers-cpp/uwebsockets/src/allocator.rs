//! `operator new` and `delete` of the C++ side, with the allocator that counts.

use std::alloc::{Layout, alloc, dealloc};

/// The length of each block is stored before it, because C++ may free a block without its length.
const HEADER: usize = 16;

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(HEADER)?, HEADER).ok()
}

#[unsafe(no_mangle)]
extern "C" fn windlass_bench_alloc(bytes: usize) -> *mut u8 {
    let Some(layout) = layout(bytes) else {
        return std::ptr::null_mut();
    };
    // SAFETY: the layout has a size, for it has room for the header.
    let block = unsafe { alloc(layout) };
    if block.is_null() {
        return block;
    }
    // SAFETY: the block begins with room for the header, and is aligned to it.
    unsafe { block.cast::<usize>().write(bytes) };
    // SAFETY: the header is within the block.
    unsafe { block.add(HEADER) }
}

/// # Safety
///
/// The block is null or came from [`windlass_bench_alloc`] and is given back once.
#[unsafe(no_mangle)]
unsafe extern "C" fn windlass_bench_free(block: *mut u8) {
    if block.is_null() {
        return;
    }
    // SAFETY: by the contract, a header of ours is in front of it.
    let start = unsafe { block.sub(HEADER) };
    // SAFETY: the header was written when the block was made.
    let bytes = unsafe { start.cast::<usize>().read() };
    let layout = layout(bytes).expect("it was a layout when the block was made");
    // SAFETY: the block came from `alloc` with this layout.
    unsafe { dealloc(start, layout) };
}
