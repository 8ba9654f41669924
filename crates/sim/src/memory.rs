//! Counts the memory of each thread, so that a simulation can limit its own.
//!
//! This module defines the allocator of all programs that link this crate: the system's, with a
//! count. `nacre` does not link it.

#![allow(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; it passes all calls on to the system's"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has allocated and not freed. Negative if it frees what other threads
    /// allocated.
    static USED: Cell<isize> = const { Cell::new(0) };
    /// The largest value of `USED` since the last [`reset_peak`].
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Bytes that this thread has allocated and not freed.
pub fn used() -> isize {
    USED.get()
}

/// The largest value of [`used`] since the last [`reset_peak`].
pub fn peak() -> isize {
    PEAK.get()
}

/// Begins a new measurement of [`peak`].
pub fn reset_peak() {
    PEAK.set(USED.get());
}

fn add(bytes: isize) {
    // The variables have no destructor, so they exist as long as the thread.
    let used = USED.get() + bytes;
    USED.set(used);
    PEAK.set(used.max(PEAK.get()));
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all memory comes from `System`, with the caller's layouts; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: the caller's guarantees are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: the caller's guarantees are those of `System`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: the caller's guarantees are those of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size as isize - layout.size() as isize);
        // SAFETY: the caller's guarantees are those of `System`.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_does_not_count() {
        let before = used();
        reset_peak();
        let block = vec![0_u8; 1 << 20];
        assert_eq!(used() - before, 1 << 20);
        drop(block);
        assert_eq!(used(), before);
        assert_eq!(peak() - before, 1 << 20);
    }
}
