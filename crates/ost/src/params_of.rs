//! The target's parameters, under Lustre's names: `obdfilter.testfs-OST0000.*`.

use std::sync::{Arc, Weak};

use params::{Param, Registered, Registry};

use crate::Ost;

/// Registers them; they show the target as long as it lives.
pub(crate) fn register(ost: &Arc<Ost>, registry: &Registry) -> Vec<Registered> {
    let weak = Arc::downgrade(ost);
    let show = |name: &str, about: &'static str, f: fn(&Ost) -> String| {
        let weak: Weak<Ost> = weak.clone();
        let param =
            Param::read_only(move || weak.upgrade().map(|ost| f(&ost)).unwrap_or_default()).about(about);
        registry.register(format!("obdfilter.{}.{name}", ost.svname), param)
    };
    vec![
        show("uuid", "The target's UUID.", |o| o.uuid.clone()),
        show("instance", "How often the target has been started.", |o| {
            o.offer.instance.to_string()
        }),
        show("brw_size", "The largest read or write, MiB.", |o| {
            (o.offer.brw_size >> 20).to_string()
        }),
        show("tot_granted", "Space promised to clients, bytes.", |o| {
            o.grants.total_granted().to_string()
        }),
        show("tot_dirty", "Data that clients say they cache, bytes.", |o| {
            o.grants.total_dirty().to_string()
        }),
        show("kbytesavail", "Free space, KiB.", |o| {
            (o.space.known_free_bytes() >> 10).to_string()
        }),
        show("last_committed", "The last transaction that is on disk.", |o| {
            o.committer.last_committed().to_string()
        }),
        show(
            "stats",
            "Reads and writes: samples, smallest, largest, sum.",
            |o| o.stats.show(),
        ),
    ]
}
