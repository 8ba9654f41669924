//! The commands of each capture as calls of our client, with checks of the results.

mod data;
mod locks;
pub mod mdts;
mod names;
mod xattrs;

use crate::captured_servers::scenario_run::ScenarioRun;
use std::future::Future;
use std::pin::Pin;

/// Runs one capture's commands on our client.
pub type Scenario = for<'a> fn(&'a ScenarioRun) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

macro_rules! scenarios {
    ($( $capture:literal => $module:ident::$name:ident, )*) => {
        /// The scenarios by capture.
        pub const SCENARIOS: &[(&str, Scenario)] = &[ $( ($capture, |run| Box::pin($module::$name(run))), )* ];
    };
}

scenarios! {
    "b1_client_mount" => names::mount,
    "z1_mount_single_server" => names::mount,
    "d1_mkdir" => names::mkdir,
    "d2_create_write_close" => data::create_write_close,
    "d3_create_excl_empty" => names::touch,
    "d4_create_64k_write" => data::create_64k,
    "e1_read_back_cold" => data::read_back,
    "e2_read_back_warm" => data::read_warm,
    "e3_read_nonexistent" => names::nonexistent,
    "f1_ls_l_50" => names::list_50,
    "f2_ls_l_50_nostatahead" => names::list_50,
    "f3_stat_one" => names::stat_one,
    "g1_readdir_big" => names::readdir_big,
    "g2_readdir_small" => names::readdir_small,
    "h1_unlink" => names::unlink,
    "h2_rmdir" => names::rmdir,
    "h3_unlink_open" => data::unlink_open,
    "i1_rename_same_dir" => names::rename_same_dir,
    "i2_rename_cross_dir" => names::rename_cross_dir,
    "i3_hardlink" => names::hardlink,
    "i4_symlink" => names::symlink,
    "j1_chmod_chown_utimes" => names::attributes,
    "j2_truncate" => data::truncate,
    "k1_xattr" => xattrs::user,
    "k2_acl" => xattrs::acl,
    "l3_cksum_adler" => data::checksum,
    "l3_cksum_t10crc4K" => data::checksum,
    "l3_cksum_t10crc512" => data::checksum,
    "l3_cksum_t10ip4K" => data::checksum,
    "l3_cksum_t10ip512" => data::checksum,
    "z2_cksum_adler" => data::checksum,
    "z2_cksum_crc32" => data::checksum,
    "z2_cksum_crc32c" => data::checksum,
    "l4_small_io_short" => data::short_io,
    "l5_direct_io" => data::direct_io,
    "m1_remote_dir" => mdts::remote_directory,
    "m2_striped_dir" => mdts::striped_directory,
    "m3_cross_mdt_rename_link" => mdts::rename_and_link,
    "n1_flock" => locks::flock,
    "n2_flock_contended" => locks::flock,
    "o1_fsync" => data::fsync,
    "o2_statfs" => names::statfs,
    "p1_b_reads_dirty" => locks::other_client_reads_dirty_data,
    "p2_glimpse" => locks::glimpse,
    "p3_dir_cache_revoke" => locks::directory_revoked,
    "p4_attr_revoke" => names::chmod_shared,
    "p5_pingpong_append" => locks::append_in_turn,
    "p6_truncate_conflict" => locks::another_truncates,
    "q2_umount_last" => data::umount,
    "t2_pfl" => data::progressive_layout,
    "t3_fallocate_hole" => data::fallocate,
    "t4_fid2path" => names::fid2path,
    "t8_setstripe_dir" => xattrs::default_layout,
    "t12_perm_denied" => names::permissions,
    "u1_idle_pings" => names::idle,
}
