//! The clock and the random source of a simulation's thread.
//!
//! This module defines the C library's functions `clock_gettime` and `getrandom`, so that all code
//! of the process calls them, libraries included. On the thread of a simulation they return virtual
//! time and numbers from the seed; on all other threads they ask the kernel. So the time of day,
//! the seeds of hash maps and UUIDs are functions of the seed, without a hook in the product.
//!
//! Only programs that link this crate get these functions; `nacre` does not.

#![allow(
    unsafe_code,
    reason = "defines two functions of the C library; each unsafe block states its reason"
)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use cpt::NodeScope;
use libc::{c_int, c_long, c_uint, c_void, clockid_t, size_t, ssize_t, timespec};

/// The monotonic clock when a simulation begins.
const BOOT: Duration = Duration::from_secs(1_000);
/// The time of day when a simulation begins: 2026-01-01, in seconds since 1970.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);

/// The state of a simulation's thread.
struct World {
    /// When the simulation began; `None` before its runtime exists.
    began: Cell<Option<tokio::time::Instant>>,
    /// State of the generator.
    random: Cell<u64>,
    /// How far the clock of each node is ahead of the true time, in milliseconds.
    skews: RefCell<BTreeMap<u32, i64>>,
    /// Whether the thread is asking tokio for the time. Tokio itself calls `clock_gettime`, which
    /// must not ask again.
    asking: Cell<bool>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Makes the calling thread the thread of the simulation with this seed. The thread must be fresh:
/// the standard library seeds its hash maps once per thread.
pub fn begin(seed: u64) {
    WORLD.with(|world| {
        *world.borrow_mut() = Some(World {
            began: Cell::new(None),
            random: Cell::new(seed ^ 0x9e37_79b9_7f4a_7c15),
            skews: RefCell::default(),
            asking: Cell::new(false),
        });
    });
}

/// Starts the clock; call it in the simulation's runtime: the time of that runtime is paused.
pub fn start_clock() {
    with_world(|world| world.began.set(Some(tokio::time::Instant::now())));
}

/// Sets how far a node's clock is ahead of the true time, in milliseconds.
pub fn set_skew(node: u32, milliseconds: i64) {
    with_world(|world| world.skews.borrow_mut().insert(node, milliseconds));
}

/// Virtual time since the beginning.
pub fn elapsed() -> Duration {
    with_world(World::elapsed).unwrap_or_default()
}

fn with_world<T>(f: impl FnOnce(&World) -> T) -> Option<T> {
    // The thread-local variables are gone while a thread ends.
    let inside = |world: &RefCell<Option<World>>| world.try_borrow().ok()?.as_ref().map(f);
    WORLD.try_with(inside).ok().flatten()
}

impl World {
    fn elapsed(&self) -> Duration {
        let Some(began) = self.began.get().filter(|_| !self.asking.get()) else {
            return Duration::ZERO;
        };
        self.asking.set(true);
        let elapsed = began.elapsed();
        self.asking.set(false);
        elapsed
    }

    fn time_of_day(&self) -> Duration {
        let time = EPOCH + self.elapsed();
        let skew = NodeScope::current_id().and_then(|id| self.skews.borrow().get(&id).copied());
        match skew.unwrap_or_default() {
            ahead @ 0.. => time + Duration::from_millis(ahead.unsigned_abs()),
            behind => time.saturating_sub(Duration::from_millis(behind.unsigned_abs())),
        }
    }

    /// The next number (splitmix64).
    fn next(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The C library's function.
///
/// # Safety
///
/// `time` must be valid for writing, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let simulated = with_world(|world| match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE | libc::CLOCK_TAI => world.time_of_day(),
        _ => BOOT + world.elapsed(),
    });
    match simulated {
        Some(now) if !time.is_null() => {
            // SAFETY: the caller guarantees that `time` is valid for writing.
            unsafe {
                (*time).tv_sec = now.as_secs() as libc::time_t;
                (*time).tv_nsec = c_long::from(now.subsec_nanos());
            }
            0
        }
        // SAFETY: the caller guarantees that the arguments of the system call are valid.
        _ => unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int },
    }
}

/// The C library's function.
///
/// # Safety
///
/// `buf` must be valid for writing `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buf: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    let simulated = with_world(|world| {
        for i in 0..len {
            // SAFETY: the caller guarantees that `len` bytes are valid for writing.
            unsafe { buf.cast::<u8>().add(i).write(world.next() as u8) };
        }
    });
    match simulated {
        Some(()) => len as ssize_t,
        // SAFETY: as in `clock_gettime`.
        None => unsafe { libc::syscall(libc::SYS_getrandom, buf, len, flags) as ssize_t },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::hash::{BuildHasher, RandomState};
    use std::time::{Instant, SystemTime};

    /// The observations of a simulation with this seed.
    fn observe(seed: u64) -> (u64, SystemTime, Duration) {
        let simulation = move || {
            begin(seed);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            runtime.block_on(async {
                start_clock();
                let before = Instant::now();
                tokio::time::sleep(Duration::from_secs(3600)).await;
                let hash = RandomState::new().hash_one(1);
                (hash, SystemTime::now(), before.elapsed())
            })
        };
        std::thread::spawn(simulation).join().unwrap()
    }

    #[test]
    fn clock_and_hash_seeds_depend_on_the_seed_only() {
        let [one, again, other] = [1, 1, 2].map(observe);
        assert_eq!(one, again);
        assert_ne!(one.0, other.0);
        let hour = Duration::from_secs(3600);
        assert_eq!((one.1, one.2), (SystemTime::UNIX_EPOCH + EPOCH + hour, hour));
        // Other threads have the kernel's time.
        assert!(SystemTime::now() > SystemTime::UNIX_EPOCH + EPOCH + hour);
    }

    #[test]
    fn a_nodes_clock_may_be_wrong() {
        let simulation = || {
            begin(1);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            runtime.block_on(async {
                start_clock();
                set_skew(3, -1500);
                let node = NodeScope::new(3);
                (SystemTime::now(), node.run(async { SystemTime::now() }).await)
            })
        };
        let (now, behind) = std::thread::spawn(simulation).join().unwrap();
        assert_eq!(now.duration_since(behind).unwrap(), Duration::from_millis(1500));
    }
}
