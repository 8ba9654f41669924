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

thread_local! {
    static CURRENT: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// A cluster and the inputs that it has served.
struct Session {
    cluster: Cluster,
    inputs: usize,
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
            }
        });
        let before = memory::live();
        memory::reset_peak();
        history::add(input);
        session.cluster.play(&steps);
        session.inputs += 1;
        let peak = memory::peak() - before;
        assert!(peak < PEAK_MAX, "an input used {peak} bytes of memory at a time");
        if std::env::var_os("FUZZ_TRACE").is_some() {
            eprintln!("live {} +{} peak {peak} dirty {}", memory::live(), memory::live() as i64 - before as i64, session.cluster.is_dirty());
        }
        if session.inputs == INPUTS_MAX || session.cluster.is_dirty() {
            *current = None;
        }
    });
}
