//! The target's parameters under Lustre's names: `obdfilter.testfs-OST0000.*`, and those of its
//! locks and its disk space.

use std::sync::Arc;

use osd::Barrier;
use params::{Group, Param, Registry};
use rpc::TargetExports;

use crate::{Ost, scrub::SPEED_MAX};

/// Registers the parameters. They disappear when the returned groups are dropped.
pub(crate) fn register(ost: &Arc<Ost>, exports: &Arc<TargetExports>, registry: &Registry) -> Vec<Group> {
    let mut own = registry.group(format!("obdfilter.{}", ost.svname));
    let read = |show: fn(&Ost) -> String| {
        let ost = Arc::downgrade(ost);
        Param::read_only(move || ost.upgrade().map(|ost| show(&ost)).unwrap_or_default())
    };
    let gauge = |number: fn(&Ost) -> u64| {
        let ost = Arc::downgrade(ost);
        Param::gauge(move || ost.upgrade().map_or(0, |ost| number(&ost)))
    };
    let transactions = ost.committer.transactions().clone();
    let barrier = Barrier::new(ost.index.clone(), Some(ost.objects.clone()), transactions);
    own.add("uuid", read(|o| o.uuid.clone()).about("the target's UUID"))
        .add(
            "instance",
            read(|o| o.offer.instance.to_string())
                .about("number of this start; each later start has a higher one"),
        )
        .add("evict_client", exports.param_evict_client())
        .add("barrier", barrier.param())
        .add(
            "brw_size",
            read(|o| (o.offer.brw_size >> 20).to_string()).about("the largest read or write, MiB"),
        )
        .add(
            "tot_granted",
            gauge(|o| o.grants.total_granted()).about("space granted to clients, bytes"),
        )
        .add(
            "tot_dirty",
            gauge(|o| o.grants.total_dirty()).about("dirty data in the clients' caches, bytes"),
        )
        .add(
            "tot_pending",
            gauge(|o| o.grants.total_pending()).about("granted space that writes in progress use, bytes"),
        )
        .add(
            "kbytesavail",
            gauge(|o| o.space.avail_bytes() >> 10).about("free space without the reserve, KiB"),
        )
        .add(
            "last_committed",
            read(|o| o.committer.last_committed().to_string())
                .about("number of the last transaction on disk"),
        )
        .add(
            "scrub",
            read(|o| o.scrub.text())
                .about("counts of the scrub of the objects since the target's start; a block has 4 KiB"),
        )
        .add(
            "scrub_damaged",
            gauge(|o| o.scrub.damaged()).about(
                "blocks of 4 KiB of which the scrub found that they do not match their checksums, since the target's start",
            ),
        )
        .add(
            "scrub_mb_s",
            Param::atomic(ost.scrub.speed.clone(), 0..=SPEED_MAX)
                .about("bandwidth of the scrub, MiB/s; 0: none"),
        );
    exports.add_recovery_params(&mut own);
    vec![
        exports.register_stats(registry, &format!("obdfilter.{}", ost.svname), "stats"),
        own,
        ost.locks.register_params(registry),
        ost.space.register_params(registry, &ost.svname),
    ]
}
