//! The targets that send requests to servers: plays an input on servers that live for many inputs
//! ([`Cluster`]), and watches the memory.

use std::cell::RefCell;

use crate::cluster::Cluster;
use crate::steps::Step;
use crate::{history, log, memory};

/// Number of inputs that one cluster serves.
const INPUTS_MAX: usize = 256;
/// Maximum memory that one input may use at any time, bytes.
const PEAK_MAX: usize = 64 << 20;
/// Growth of the servers' memory, bytes, after which the last input is repeated, to check whether
/// each repetition adds memory.
const GROWTH_CHECK_MIN: isize = 128 << 10;
/// Number of times that the input is played between two measurements.
const REPLAYS: isize = 64;
/// Memory that an input may leave behind each time, bytes. An OST remembers the latest objects that
/// it has destroyed.
const GROWTH_MAX: isize = 2 << 10;

thread_local! {
    static CURRENT: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// A cluster and its history.
struct Session {
    cluster: Cluster,
    /// Number of inputs that it has served.
    inputs: usize,
    /// Bytes by which its memory has grown since the last check.
    growth: isize,
}

/// Plays an input.
///
/// # Panics
///
/// The servers violate an invariant.
pub fn serve(input: &[u8]) {
    let steps = Step::read(input);
    if steps.is_empty() {
        return;
    }
    CURRENT.with_borrow_mut(|current| {
        let session = current.get_or_insert_with(|| {
            log::start();
            history::clear();
            Session {
                cluster: Cluster::start(),
                inputs: 0,
                growth: 0,
            }
        });
        history::add(input);
        session.growth += session.play(&steps);
        if session.growth > GROWTH_CHECK_MIN {
            session.growth = 0;
            session.check_growth(&steps);
        }
        session.inputs += 1;
        if session.inputs == INPUTS_MAX || session.cluster.is_dirty() {
            *current = None;
        }
    });
}

impl Session {
    /// Plays an input. Returns the number of bytes by which the memory has grown.
    fn play(&mut self, steps: &[Step]) -> isize {
        let before = memory::live();
        memory::reset_peak();
        self.cluster.play(steps);
        let peak = memory::peak().saturating_sub(before);
        assert!(peak < PEAK_MAX, "an input used {peak} bytes of memory at a time");
        memory::live() as isize - before as isize
    }

    /// Checks that an input does not leave memory behind each time. Measures three times, because
    /// a hash table may double its size in one measurement.
    fn check_growth(&mut self, steps: &[Step]) {
        let growths = [(); 3].map(|()| self.measure_growth(steps));
        let least = growths.iter().min().copied().unwrap_or(0);
        assert!(
            least <= GROWTH_MAX,
            "each run of an input leaves memory behind; bytes of a run on average: {growths:?}"
        );
    }

    /// Plays an input [`REPLAYS`] times. Returns the number of bytes that each run leaves behind on
    /// average.
    fn measure_growth(&mut self, steps: &[Step]) -> isize {
        // The index in memory defers deallocations.
        let live = || {
            (0..8).for_each(|_| crossbeam_epoch::pin().flush());
            memory::live() as isize
        };
        let before = live();
        for _ in 0..REPLAYS {
            self.play(steps);
        }
        (live() - before) / REPLAYS
    }
}
