//! Builds the connections to metadata targets: at the mount, and when the file system gets new
//! targets.

use crate::client::MountOptions;
use crate::data::Lov;
use crate::inode::Inodes;
use crate::kernel::Kernel;
use crate::lmv::Lmv;
use crate::mdc::Mdc;
use crate::owner::MdcOwner;
use cpt::Handle;
use ldlm::{LockClient, LockClientConfig, UnusedLockBudget};
use mgc::TargetConf;
use params::{Group, Registry};
use rpc::{Import, ImportConfig, ImportKind, Ptlrpc};
use std::sync::{Arc, OnceLock, Weak};
use wire::{
    LUSTRE_VERSION_CODE, LockTerms, MDS_INODELOCK_FULL, NANOSECONDS_REQUESTED, OBD_CONNECT_64BITHASH,
    OBD_CONNECT_ACL, OBD_CONNECT_AT, OBD_CONNECT_ATTRFID, OBD_CONNECT_BRW_SIZE, OBD_CONNECT_BULK_MBITS,
    OBD_CONNECT_CANCELSET, OBD_CONNECT_CKSUM, OBD_CONNECT_DIR_STRIPE, OBD_CONNECT_EINPROGRESS,
    OBD_CONNECT_FID, OBD_CONNECT_FLAGS2, OBD_CONNECT_FLOCK_DEAD, OBD_CONNECT_FULL20, OBD_CONNECT_IBITS,
    OBD_CONNECT_LAYOUTLOCK, OBD_CONNECT_LOV_V3, OBD_CONNECT_LVB_TYPE, OBD_CONNECT_MAX_EASIZE,
    OBD_CONNECT_MULTIMODRPCS, OBD_CONNECT_NODEVOH, OBD_CONNECT_OPEN_BY_FID, OBD_CONNECT_SHORTIO,
    OBD_CONNECT_SUBTREE, OBD_CONNECT_UMASK, OBD_CONNECT_VERSION, OBD_CONNECT_XATTR, OBD_CONNECT2_BATCH_RPC,
    OBD_CONNECT2_CRUSH, OBD_CONNECT2_DOM_LVB, OBD_CONNECT2_INC_XID, OBD_CONNECT2_LOCK_CONVERT,
    OBD_CONNECT2_LSEEK, OBD_CONNECT2_LSOM, OBD_CONNECT2_OVERSTRIPING, OBD_CONNECT2_REP_MBITS,
    OBD_CONNECT2_SUM_STATFS, ObdConnectData, RENAME_FLAGS_REQUESTED, checksum::ChecksumType,
};

/// Connect flags that MDT0000 must grant.
pub(crate) const REQUIRED_FLAGS: u64 = OBD_CONNECT_FID | OBD_CONNECT_ATTRFID | OBD_CONNECT_FULL20;
/// `max_rpcs_in_flight` of a metadata import.
const MDC_RPCS_IN_FLIGHT: u32 = 64;
/// Largest bulk of directory pages, in bytes.
pub(crate) const MDC_BRW_SIZE: u32 = 1 << 20;
/// Largest layout or extended attribute that the client accepts in a reply, in bytes.
const EASIZE_MAX: u32 = 64 << 10;
/// `max_mod_rpcs_in_flight` to request.
const MDC_MOD_RPCS: u16 = 63;

/// The connect data for a metadata target: the features that this client uses.
pub(crate) fn connect_data(opts: &MountOptions) -> ObdConnectData {
    ObdConnectData {
        paddingD: match opts.lock_terms {
            LockTerms::Lustre => 0,
            LockTerms::Nacre => RENAME_FLAGS_REQUESTED,
        },
        paddingE: opts.lock_terms.request(),
        paddingF: if opts.nanoseconds {
            NANOSECONDS_REQUESTED
        } else {
            0
        },
        ocd_connect_flags: REQUIRED_FLAGS
            | OBD_CONNECT_VERSION
            | OBD_CONNECT_AT
            | OBD_CONNECT_IBITS
            | OBD_CONNECT_NODEVOH
            | OBD_CONNECT_CANCELSET
            | OBD_CONNECT_LOV_V3
            | OBD_CONNECT_64BITHASH
            | OBD_CONNECT_BRW_SIZE
            | OBD_CONNECT_LVB_TYPE
            | OBD_CONNECT_LAYOUTLOCK
            | OBD_CONNECT_MAX_EASIZE
            | OBD_CONNECT_OPEN_BY_FID
            | OBD_CONNECT_SUBTREE
            | OBD_CONNECT_BULK_MBITS
            | OBD_CONNECT_EINPROGRESS
            | OBD_CONNECT_ACL
            | OBD_CONNECT_XATTR
            | OBD_CONNECT_UMASK
            | OBD_CONNECT_FLOCK_DEAD
            | OBD_CONNECT_MULTIMODRPCS
            | OBD_CONNECT_DIR_STRIPE
            | OBD_CONNECT_CKSUM
            | OBD_CONNECT_SHORTIO
            | OBD_CONNECT_FLAGS2,
        ocd_connect_flags2: OBD_CONNECT2_INC_XID
            | OBD_CONNECT2_LOCK_CONVERT
            | OBD_CONNECT2_REP_MBITS
            | OBD_CONNECT2_LSOM
            | OBD_CONNECT2_DOM_LVB
            | OBD_CONNECT2_LSEEK
            | OBD_CONNECT2_OVERSTRIPING
            | OBD_CONNECT2_SUM_STATFS
            | OBD_CONNECT2_CRUSH
            | OBD_CONNECT2_BATCH_RPC,
        ocd_version: LUSTRE_VERSION_CODE,
        ocd_ibits_known: MDS_INODELOCK_FULL,
        ocd_brw_size: MDC_BRW_SIZE,
        ocd_max_easize: EASIZE_MAX,
        ocd_maxmodrpcs: MDC_MOD_RPCS,
        ocd_cksum_types: ChecksumType::supported(),
        ..ObdConnectData::default()
    }
}

/// The common settings of a mount's connections to its metadata targets.
pub(crate) struct MdcBuilder {
    pub(crate) rpc: Arc<Ptlrpc>,
    pub(crate) client_uuid: String,
    /// Suffix of the names of parameters and imports.
    pub(crate) instance: String,
    pub(crate) connect: ObdConnectData,
    /// First cookie of the locks from each target.
    pub(crate) seed: u64,
    pub(crate) lock_budget: Arc<UnusedLockBudget>,
    pub(crate) params: Registry,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) kernel: Kernel,
    /// The object targets, which the owners of all connections need.
    pub(crate) lov: Arc<OnceLock<Weak<Lov>>>,
}

impl MdcBuilder {
    /// Sets the object targets. Called once.
    pub(crate) fn set_lov(&self, lov: &Arc<Lov>) {
        let _ = self.lov.set(Arc::downgrade(lov));
    }

    /// Builds the connection to a target, and registers its parameters.
    pub(crate) fn build(&self, target: &TargetConf) -> (Arc<Mdc>, Vec<Group>) {
        let owner = MdcOwner::new(
            self.inodes.clone(),
            self.kernel.clone(),
            Handle::current(),
            self.lov.clone(),
        );
        let locks = LockClient::new(
            owner.clone(),
            LockClientConfig {
                seed: self.seed,
                budget: self.lock_budget.clone(),
                ..LockClientConfig::default()
            },
        );
        let name = format!("{}-mdc-{}", target.name, self.instance);
        let import = Import::new(
            &self.rpc,
            ImportConfig {
                name: name.clone(),
                target_uuid: target.uuid.clone(),
                client_uuid: self.client_uuid.clone(),
                nids: target.nids.clone(),
                kind: ImportKind::Mdc,
                connect: self.connect,
                max_rpcs_in_flight: MDC_RPCS_IN_FLIGHT,
                owner: owner.clone(),
            },
        );
        locks.set_import(import.clone());
        let caches = (self.inodes.clone(), self.kernel.clone());
        let mdc = Arc::new(Mdc::new(target.index, import, locks, caches));
        owner.set_mdc(&mdc);
        let mut import_params = self.params.group(format!("mdc.{name}"));
        mdc.import.add_params(&mut import_params);
        let lock_params = mdc.locks.register_params(&self.params, &name);
        (mdc, vec![lock_params, import_params])
    }

    /// Adds a target to the table unless it is known. Returns its parameters.
    pub(crate) fn add(&self, lmv: &Lmv, target: &TargetConf) -> Vec<Group> {
        let mut groups = Vec::new();
        lmv.add(target.index, || {
            let (mdc, params) = self.build(target);
            groups = params;
            mdc
        });
        groups
    }
}
