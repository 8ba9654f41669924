//! The targets that send requests to servers: plays an input on servers that live for many inputs
//! ([`Cluster`]), and watches the memory.

use std::cell::RefCell;

use crate::cluster::Cluster;
use crate::steps::Step;
use crate::{history, log, memory};

/// Number of inputs that one cluster serves.
const INPUTS_MAX: usize = 256;
/// Memory that one input may use at a time, bytes.
const PEAK_MAX: usize = 64 << 20;
/// When the memory of the servers has grown by this much since the last check, the last input is
/// played again and again, bytes. It passes if it does not add this much.
const GROWTH_MAX: isize = 64 << 10;
/// Number of times that the input is played before its growth is measured, so that tables and
/// deferred deallocations reach their sizes.
const WARM_UP: usize = 32;
/// Number of times that the input is played while its growth is measured.
const MEASURED: usize = 128;

thread_local! {
    static CURRENT: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// A cluster and what is known of it.
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
/// The servers break a promise.
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
        if session.growth > GROWTH_MAX {
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

    /// Checks that an input does not leave memory behind each time.
    fn check_growth(&mut self, steps: &[Step]) {
        for _ in 0..WARM_UP {
            self.play(steps);
        }
        let growth: isize = (0..MEASURED).map(|_| self.play(steps)).sum();
        assert!(growth < GROWTH_MAX, "{MEASURED} runs of an input leave {growth} bytes behind");
    }
}
