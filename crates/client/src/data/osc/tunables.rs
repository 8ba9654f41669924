//! Parameters of an OSC, under Lustre's names (`osc.*.max_dirty_mb`, ...).

use super::rpc_stats::RpcStats;
use super::{DEFAULT_RPCS_IN_FLIGHT, Osc};
use params::{Group, Param, Registry};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use wire::checksum::ChecksumType;

/// Largest `max_dirty_mb`, in MiB.
const DIRTY_MB_MAX: u64 = 2048;
/// Largest `idle_timeout`, in seconds.
const IDLE_TIMEOUT_MAX_SECS: u64 = 3600;
/// Largest `max_rpcs_in_flight`.
const RPCS_IN_FLIGHT_MAX: u32 = 256;

/// The values of the parameters that no other structure stores.
#[derive(Debug)]
pub(super) struct Tunables {
    /// Whether data carries checksums.
    pub(super) checksums: Arc<AtomicBool>,
    /// A bit of `ocd_cksum_types`; 0: the best agreed type.
    pub(super) checksum_type: AtomicU32,
    /// `max_rpcs_in_flight`.
    rpcs_in_flight: AtomicU64,
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables {
            checksums: Arc::new(AtomicBool::new(true)),
            checksum_type: AtomicU32::new(0),
            rpcs_in_flight: AtomicU64::new(DEFAULT_RPCS_IN_FLIGHT.into()),
        }
    }
}

impl Osc {
    /// Registers the parameters below `osc.<name>.`, until the returned group is dropped.
    pub(super) fn register_params(self: &Arc<Self>, registry: &Registry) -> Group {
        let mut group = registry.group(format!("osc.{}", self.target.name));
        let weak = Arc::downgrade(self);
        let show = |value: fn(&Osc) -> u64| {
            let weak = weak.clone();
            move || weak.upgrade().map_or(0, |osc| value(&osc)).to_string()
        };
        let number = |show: fn(&Osc) -> u64, max: u64, set: fn(&Osc, u64)| {
            let (shown, setter) = (weak.clone(), weak.clone());
            Param::read_write(
                move || shown.upgrade().map_or(0, |osc| show(&osc)).to_string(),
                move |text| {
                    let value = text.trim().parse().ok().filter(|value| (1..=max).contains(value));
                    let value = value.ok_or_else(|| format!("expected a whole number from 1 to {max}"))?;
                    if let Some(osc) = setter.upgrade() {
                        set(&osc, value);
                    }
                    Ok(())
                },
            )
        };
        let dirty = number(
            |osc| osc.budget.dirty_max() >> 20,
            DIRTY_MB_MAX,
            |osc, mb| osc.budget.set_dirty_max(mb << 20),
        );
        let in_flight = number(
            |osc| osc.tunables.rpcs_in_flight.load(Ordering::Relaxed),
            RPCS_IN_FLIGHT_MAX.into(),
            |osc, max| osc.set_rpcs_in_flight(max as u32),
        );
        let checksums = Param::switch(self.tunables.checksums.clone());
        group
            .add(
                "max_dirty_mb",
                dirty.about("limit of dirty data, MiB"),
            )
            .add(
                "max_rpcs_in_flight",
                in_flight.about("limit of concurrent requests to the target"),
            )
            .add(
                "checksums",
                checksums.about("whether data carries a checksum on the network"),
            )
            .add(
                "checksum_type",
                self.checksum_type_param()
                    .about("checksum types that the target supports, the used one in brackets"),
            )
            .add(
                "idle_timeout",
                self.idle_timeout_param()
                    .about("seconds without requests and locks after which the client disconnects from the target until the next use; 0: never"),
            )
            .add(
                "cur_dirty_bytes",
                Param::read_only(show(|osc| osc.budget.dirty()))
                    .about("dirty data, bytes"),
            )
            .add(
                "cur_grant_bytes",
                Param::read_only(show(|osc| osc.budget.available()))
                    .about("unused grant from the target, bytes"),
            );
        group.add(
            "rpc_stats",
            RpcStats::param(&weak).about(
                "sizes, offsets and latencies of reads and writes, and their number in flight; any write clears them",
            ),
        );
        self.import().add_params(&mut group);
        group
    }

    fn checksum_type_param(self: &Arc<Self>) -> Param {
        let (shown, setter) = (Arc::downgrade(self), Arc::downgrade(self));
        let show = move || {
            let Some(osc) = shown.upgrade() else {
                return String::new();
            };
            let (types, used) = (osc.checksum_types(), osc.checksum_type());
            let supported = ChecksumType::ALL.iter().filter(|ty| types & ty.bit() != 0);
            let names = supported.map(|ty| match *ty == used {
                true => format!("[{}]", ty.name()),
                false => ty.name().to_owned(),
            });
            names.collect::<Vec<_>>().join(" ")
        };
        let set = move |text: &str| {
            let Some(osc) = setter.upgrade() else {
                return Ok(());
            };
            let types = osc.checksum_types();
            let mut supported = ChecksumType::ALL.iter().filter(|ty| types & ty.bit() != 0);
            let chosen = supported.find(|ty| ty.name().eq_ignore_ascii_case(text.trim()));
            let chosen = chosen.ok_or("the target does not support this checksum type")?;
            osc.tunables.checksum_type.store(chosen.bit(), Ordering::Relaxed);
            Ok(())
        };
        Param::read_write(show, set)
    }

    fn idle_timeout_param(self: &Arc<Self>) -> Param {
        let (shown, setter) = (Arc::downgrade(self), Arc::downgrade(self));
        let show = move || {
            let after = shown.upgrade().and_then(|osc| osc.import().idle_timeout());
            after.map_or(0, |after| after.as_secs()).to_string()
        };
        let set = move |text: &str| {
            let secs = text
                .trim()
                .parse()
                .ok()
                .filter(|secs| *secs <= IDLE_TIMEOUT_MAX_SECS);
            let secs =
                secs.ok_or_else(|| format!("expected a whole number from 0 to {IDLE_TIMEOUT_MAX_SECS}"))?;
            if let Some(osc) = setter.upgrade() {
                osc.import()
                    .set_idle_timeout((secs > 0).then(|| Duration::from_secs(secs)));
            }
            Ok(())
        };
        Param::read_write(show, set)
    }

    fn set_rpcs_in_flight(&self, max: u32) {
        let before = self.tunables.rpcs_in_flight.swap(max.into(), Ordering::Relaxed) as usize;
        let after = max as usize;
        if after > before {
            self.write_slots.add_permits(after - before);
        } else {
            // Removes permits in use as soon as their RPCs end.
            let (slots, fewer) = (self.write_slots.clone(), (before - after) as u32);
            self.runtime.spawn(async move {
                if let Ok(permits) = slots.acquire_many_owned(fewer).await {
                    permits.forget();
                }
            });
        }
        self.import().set_max_rpcs_in_flight(max);
    }
}
