//! The target's parameters under Lustre's names: `mdt.testfs-MDT0000.*`, `mdd.testfs-MDT0000.*`,
//! `lod.testfs-MDT0000-mdtlov.*`, `osp.testfs-OST0000-osc-MDT0000.*`,
//! `osd-local.testfs-MDT0000.pdo`.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicI64, Ordering::Relaxed},
};

use osd::Barrier;
use params::{Group, Param, Registry, Value};
use rpc::TargetExports;
use wire::{LOV_MAX_STRIPE_COUNT, LOV_MIN_STRIPE_SIZE};

use crate::{
    layout::composite::ON_MDT_MAX,
    osp::{MAX_CREATE_COUNT, Ost},
    squash::Squash,
    target::Mdt,
};

/// Maximum of `atime_diff`, seconds: a year.
const ATIME_DIFF_MAX: u64 = 366 * 24 * 3600;
/// Maximum of `capa_timeout`, seconds: a week.
const CAPA_TIMEOUT_MAX: u64 = 7 * 24 * 3600;
/// Maximum of `lu_cache_nr`, a number of inodes.
const LU_CACHE_NR_MAX: u64 = 1 << 30;
/// Maximum of `new_ost_delay`, seconds: an hour.
const NEW_OST_DELAY_MAX: u64 = 3600;
/// Maximum stripe size, bytes: 4 GiB less the minimum stripe size.
const STRIPE_SIZE_MAX: u64 = (1 << 32) - LOV_MIN_STRIPE_SIZE as u64;

/// A read-only parameter with the value `value_of(object)`; empty once the object is dropped.
fn show<T: Send + Sync + 'static>(object: &Arc<T>, value_of: fn(&T) -> String, about: &'static str) -> Param {
    let object: Weak<T> = Arc::downgrade(object);
    Param::read_only(move || {
        object
            .upgrade()
            .map(|object| value_of(&object))
            .unwrap_or_default()
    })
    .about(about)
}

/// The parameter `enable_remote_dir_gid`.
fn remote_dir_gid(gid: &Arc<AtomicI64>) -> Param {
    let (shown, set) = (gid.clone(), gid.clone());
    Param::read_write(
        move || shown.load(Relaxed).to_string(),
        move |text| {
            let gid = text.trim().parse::<i64>().ok();
            let gid = gid.filter(|gid| (-1..=i64::from(u32::MAX)).contains(gid));
            let gid = gid.ok_or("expected -1 or the id of a group")?;
            set.store(gid, Relaxed);
            Ok(())
        },
    )
    .about("group whose members may choose the MDT of a new directory, besides administrators; -1: all users")
}

/// Registers the target's parameters. Dropping the returned groups removes them.
pub(crate) fn register(mdt: &Arc<Mdt>, exports: &Arc<TargetExports>, registry: &Registry) -> Vec<Group> {
    let svname = mdt.svname();
    let mut own = registry.group(format!("mdt.{svname}"));
    let store = mdt.store.clone();
    let dir_stats = {
        let mdt = Arc::downgrade(mdt);
        Param::read_only(move || {
            let directories = mdt.upgrade().map(|mdt| mdt.dir_stats.read(&mdt.store));
            Value::Directories(directories.unwrap_or_default())
        })
    };
    let index = mdt.store.index().clone();
    let transactions = mdt.store.transactions().clone();
    let barrier = Barrier::new(index, None, transactions);
    own.add(
        "dir_stats",
        dir_stats.about(
            "operations on the entries of each directory, recorded for a minute after each read of this parameter",
        ),
    )
    .add("uuid", show(mdt, |m| m.uuid().to_owned(), "the target's UUID"))
        .add(
            "instance",
            show(
                mdt,
                |m| m.store.transactions().epoch().to_string(),
                "identifies this start of the target",
            ),
        )
        .add(
            "capa_timeout",
            Param::atomic(mdt.capa_timeout.clone(), 1..=CAPA_TIMEOUT_MAX)
                .about("lifetime of an object capability, seconds; clients renew it earlier"),
        )
        .add(
            "enable_remote_dir",
            Param::atomic(mdt.updates.enable_remote_dir.clone(), 0..=1)
                .about("1: users may create directories on another MDT than their parent"),
        )
        .add(
            "enable_remote_dir_gid",
            remote_dir_gid(&mdt.updates.enable_remote_dir_gid),
        )
        .add(
            "enable_remote_rename",
            Param::atomic(mdt.updates.enable_remote_rename.clone(), 0..=1)
                .about("1: names move between directories of different MDTs; 0: such renames fail with EXDEV"),
        )
        .add(
            "update_records",
            show(
                mdt,
                |m| {
                    let (sessions, records) = m.updates.counts();
                    format!("records: {records}\nlocked_names: {sessions}")
                },
                "operations with other MDTs: records of those that one of both may not have on disk yet, and names that other MDTs have locked",
            ),
        )
        .add("dom_lock", mdt.data_with_open.dom_lock_param())
        .add("dom_read_open", mdt.data_with_open.reads_param())
        .add("evict_client", exports.param_evict_client())
        .add("barrier", barrier.param())
        .add(
            "last_committed",
            show(
                mdt,
                |m| m.store.transactions().committed().to_string(),
                "the last committed transaction number",
            ),
        )
        .add(
            "lu_cache_nr",
            Param::atomic(mdt.store.inode_cache().max().clone(), 0..=LU_CACHE_NR_MAX)
                .when_set(move || store.inode_cache().clear())
                .about("maximum number of cached inodes, up to 1 KiB each"),
        )
        .add(
            "lu_cache_used",
            show(
                mdt,
                |m| m.store.inode_cache().len().to_string(),
                "number of cached inodes",
            ),
        );

    exports.add_recovery_params(&mut own);

    let mut mdd = registry.group(format!("mdd.{svname}"));
    mdd.add(
        "atime_diff",
        Param::atomic(mdt.atime_diff.clone(), 0..=ATIME_DIFF_MAX)
            .about("minimum age of the access time, seconds, before a close updates it; the first access after a change always does"),
    );

    let squash_param = |set: fn(&Squash, &str) -> Result<(), String>, show: fn(&Squash) -> String, about| {
        let (squash_to_show, squash_to_set) = (mdt.squash.clone(), mdt.squash.clone());
        Param::read_write(
            move || show(&squash_to_show),
            move |text| set(&squash_to_set, text),
        )
        .about(about)
    };
    own.add(
        "root_squash",
        squash_param(
            Squash::set_root,
            Squash::show_root,
            "the user and group, UID:GID, that a client's root is mapped to; 0:0: no squashing",
        ),
    )
    .add(
        "nosquash_nids",
        squash_param(
            Squash::set_exempt_nids,
            Squash::show_exempt_nids,
            "clients exempt from root_squash: NIDs and ranges such as `10.0.0.[1-9]@tcp 0@lo`, or `NONE`",
        ),
    )
    .add(
        "enable_cap_mask",
        squash_param(
            Squash::set_caps,
            Squash::show_caps,
            "capabilities accepted from users other than root, such as `+cap_chown,cap_fowner`",
        ),
    );

    let mut lod = registry.group(format!("lod.{svname}-mdtlov"));
    let defaults = mdt.osts.default_striping();
    lod.add(
        "numobd",
        show(mdt, |m| m.osts.len().to_string(), "number of OSTs"),
    )
    .add(
        "activeobd",
        show(
            mdt,
            |m| {
                m.osts
                    .all()
                    .iter()
                    .filter(|o| o.is_connected())
                    .count()
                    .to_string()
            },
            "number of connected OSTs",
        ),
    )
    .add(
        "target_obd",
        show(mdt, target_obd, "the OSTs and their connection states"),
    )
    .add(
        "create_waits",
        show(
            mdt,
            |m| m.osts.waits().to_string(),
            "number of creates that waited for available objects",
        ),
    )
    .add(
        "new_ost_delay",
        Param::atomic(mdt.osts.new_ost_delay().clone(), 0..=NEW_OST_DELAY_MAX).about(
            "time in seconds for which new files avoid an OST that just joined, while Lustre clients are \
             connected: they read the configuration late",
        ),
    )
    .add(
        "stripecount",
        Param::atomic(defaults.stripe_count.clone(), 1..=LOV_MAX_STRIPE_COUNT.into())
            .about("default number of stripes of a file"),
    )
    .add(
        "stripesize",
        Param::atomic_multiple(
            defaults.stripe_size.clone(),
            LOV_MIN_STRIPE_SIZE.into()..=STRIPE_SIZE_MAX,
            LOV_MIN_STRIPE_SIZE.into(),
        )
        .about("default stripe size, bytes; a multiple of 64 KiB"),
    )
    .add(
        "dom_stripesize",
        Param::atomic_multiple(mdt.on_mdt_max.clone(), 0..=ON_MDT_MAX, LOV_MIN_STRIPE_SIZE.into())
            .about("largest part of a file on the MDT, bytes; a multiple of 64 KiB; 0: none"),
    );
    // Lustre has `pdo` among the store's parameters, although it concerns this target's locks.
    let mut store = mdt.store.index().space().register_params(registry, mdt.svname());
    store.add(
        "pdo",
        Param::on_off(mdt.locks.pdo().clone()).about(
            "parallel directory operations: ON: operations on different names of a directory run concurrently; OFF: each locks the whole directory",
        ),
    );
    vec![
        own,
        exports.register_stats(registry, &format!("mdt.{svname}"), "md_stats"),
        mdd,
        lod,
        mdt.locks.server().register_params(registry),
        store,
    ]
}

/// The value of `target_obd`: a line for each OST.
fn target_obd(mdt: &Mdt) -> String {
    let line = |o: &Arc<Ost>| {
        let state = if o.is_connected() { "ACTIVE" } else { "INACTIVE" };
        format!("{}: {} {state}\n", o.index(), o.target_uuid())
    };
    mdt.osts.all().iter().map(line).collect()
}

/// Makes the OST decide again whether new files may use it.
fn reapply_limits(ost: &Arc<Ost>) -> impl Fn() + Send + Sync + use<> {
    let ost = Arc::downgrade(ost);
    move || {
        if let Some(ost) = ost.upgrade() {
            ost.reapply_limits();
        }
    }
}

/// Registers the parameters of an OST's import. Dropping the returned group removes them.
pub(crate) fn register_ost(ost: &Arc<Ost>, registry: &Registry) -> Group {
    let mut group = registry.group(format!("osp.{}", ost.name()));
    let watermarks = [
        (
            "reserved_mb_low",
            &ost.watermarks.mb_low,
            "low watermark of free space, MiB: below it new files avoid the OST; 0: a thousandth of its size",
        ),
        (
            "reserved_mb_high",
            &ost.watermarks.mb_high,
            "high watermark of free space, MiB: at or above it new files use the OST again; 0: twice the low one",
        ),
        (
            "reserved_ino_low",
            &ost.watermarks.ino_low,
            "low watermark of free inodes: below it new files avoid the OST",
        ),
        (
            "reserved_ino_high",
            &ost.watermarks.ino_high,
            "high watermark of free inodes: at or above it new files use the OST again",
        ),
    ];
    for (name, watermark, about) in watermarks {
        let param = Param::atomic(watermark.clone(), 0..=1 << 40).about(about);
        group.add(name, param.when_set(reapply_limits(ost)));
    }
    group
        .add(
            "max_create_count",
            Param::atomic(ost.max_create_count.clone(), 0..=MAX_CREATE_COUNT)
                .when_set(reapply_limits(ost))
                .about(
                    "maximum number of objects that one request creates; 0: new files avoid the OST, to empty or remove it",
                ),
        )
        .add(
            "excluded",
            show(
                ost,
                Ost::exclusion,
                "why new files avoid the OST although it is connected; empty: they use it",
            ),
        )
        .add(
            "prealloc_last_seq",
            show(
                ost,
                |o| format!("{:#x}", o.objects().0),
                "the sequence of new objects",
            ),
        )
        .add(
            "prealloc_next_id",
            show(
                ost,
                |o| (o.objects().1 + 1).to_string(),
                "the next object for a new file",
            ),
        )
        .add(
            "prealloc_last_id",
            show(ost, |o| o.objects().2.to_string(), "the last precreated object"),
        )
        .add(
            "prealloc_emptied",
            show(
                ost,
                |o| o.times_emptied.load(Relaxed).to_string(),
                "number of times that the last available object was taken",
            ),
        )
        .add(
            "slow",
            show(
                ost,
                |o| u8::from(o.is_slow()).to_string(),
                "1: the last statfs failed or is unanswered for a while, so new files use other OSTs",
            ),
        )
        .add(
            "active",
            show(ost, |o| u8::from(o.is_connected()).to_string(), "1: connected").instead(
                "to stop new files from using an OST, set max_create_count=0 on the same device; set it to 20000 to allow them again",
            ),
        );
    group
}
