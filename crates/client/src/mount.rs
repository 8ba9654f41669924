//! Mounting: reads the configuration from the MGS, connects to MDT0000, finds the root. The other
//! targets connect in the background.

use crate::atime::AtimeRules;
use crate::client::{Client, MountOptions};
use crate::cred::NO_GROUP;
use crate::data::{DataConfig, Lov};
use crate::dircache::DirChunkFifo;
use crate::error::ClientError;
use crate::follow::{follow, follow_locations};
use crate::inode::Inodes;
use crate::kernel::Kernel;
use crate::lmv::Lmv;
use crate::mdc::Mdc;
use crate::owner::MdcOwner;
use crate::pack;
use crate::stats::MountStats;
use cpt::Handle;
use fastrand::Rng;
use ldlm::{LockClient, LockClientConfig, UnusedLockBudget};
use mgc::{FsConfig, Mgc, MgcError, TargetConf};
use parking_lot::{Mutex, RwLock};
use rpc::{Import, ImportConfig, ImportKind, Ptlrpc};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use wire::format::bufs;
use wire::{
    Fid, LUSTRE_VERSION_CODE, LockTerms, MDS_GET_ROOT, MDS_INODELOCK_FULL, MdtBody, NANOSECONDS_REQUESTED,
    OBD_CONNECT_64BITHASH, OBD_CONNECT_ACL, OBD_CONNECT_AT, OBD_CONNECT_ATTRFID, OBD_CONNECT_BRW_SIZE,
    OBD_CONNECT_BULK_MBITS, OBD_CONNECT_CANCELSET, OBD_CONNECT_EINPROGRESS, OBD_CONNECT_FID,
    OBD_CONNECT_FLAGS2, OBD_CONNECT_FLOCK_DEAD, OBD_CONNECT_FULL20, OBD_CONNECT_IBITS,
    OBD_CONNECT_LAYOUTLOCK, OBD_CONNECT_LOV_V3, OBD_CONNECT_LVB_TYPE, OBD_CONNECT_MAX_EASIZE,
    OBD_CONNECT_MULTIMODRPCS, OBD_CONNECT_NODEVOH, OBD_CONNECT_OPEN_BY_FID, OBD_CONNECT_SUBTREE,
    OBD_CONNECT_UMASK, OBD_CONNECT_VERSION, OBD_CONNECT_XATTR, OBD_CONNECT2_BATCH_RPC, OBD_CONNECT2_INC_XID,
    OBD_CONNECT2_LOCK_CONVERT, OBD_CONNECT2_LSOM, OBD_CONNECT2_OVERSTRIPING, OBD_CONNECT2_REP_MBITS,
    OBD_CONNECT2_SUM_STATFS, ObdConnectData, RENAME_FLAGS_REQUESTED, WireStruct, nul_terminated,
};

/// Connect flags that MDT0000 must grant.
const REQUIRED_FLAGS: u64 = OBD_CONNECT_FID | OBD_CONNECT_ATTRFID | OBD_CONNECT_FULL20;
/// `max_rpcs_in_flight` of a metadata import.
const MDC_RPCS_IN_FLIGHT: u32 = 64;
/// Largest bulk of directory pages, in bytes.
pub(crate) const MDC_BRW_SIZE: u32 = 1 << 20;
/// Largest layout or extended attribute that the client accepts in a reply, in bytes.
const EASIZE_MAX: u32 = 64 << 10;
/// `max_mod_rpcs_in_flight` to request.
const MDC_MOD_RPCS: u16 = 63;

/// The connect data for a metadata target: the features that this client uses.
fn connect_data(opts: &MountOptions) -> ObdConnectData {
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
            | OBD_CONNECT_FLAGS2,
        ocd_connect_flags2: OBD_CONNECT2_INC_XID
            | OBD_CONNECT2_LOCK_CONVERT
            | OBD_CONNECT2_REP_MBITS
            | OBD_CONNECT2_LSOM
            | OBD_CONNECT2_OVERSTRIPING
            | OBD_CONNECT2_SUM_STATFS
            | OBD_CONNECT2_BATCH_RPC,
        ocd_version: LUSTRE_VERSION_CODE,
        ocd_ibits_known: MDS_INODELOCK_FULL,
        ocd_brw_size: MDC_BRW_SIZE,
        ocd_max_easize: EASIZE_MAX,
        ocd_maxmodrpcs: MDC_MOD_RPCS,
        ..ObdConnectData::default()
    }
}

/// The next UUID (version 4) of a generator, in its text form.
fn uuid(rng: &mut Rng) -> String {
    let bytes = rng.u128(..).to_be_bytes();
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

impl Client {
    /// Mounts a file system: reads its configuration, connects to its MDT0000, finds its root. The
    /// other targets connect in the background.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: an invalid name, no configuration or no MDT0000, a failed connection,
    /// missing server features, or a root directory that cannot be found or accessed.
    pub async fn mount(rpc: &Arc<Ptlrpc>, opts: MountOptions) -> Result<Arc<Client>, ClientError> {
        Client::check_fsname(&opts.fsname)?;
        let fsname = opts.fsname.clone();
        let mut rng = Rng::with_seed(opts.seed);
        let client_uuid = uuid(&mut rng);
        let instance = format!("{:016x}", rng.u64(..));
        let config_error = |source| ClientError::Config {
            fsname: fsname.clone(),
            source,
        };
        let mgc = Mgc::connect(rpc, opts.mgs.clone(), &uuid(&mut rng))
            .await
            .map_err(config_error)?;
        let logname = format!("{fsname}-client");
        let mut log = match mgc.follow(&logname).await {
            Ok(log) if log.borrow().fsname == fsname => log,
            other => {
                mgc.disconnect().await;
                let source = other.err().unwrap_or(MgcError::NoSuchLog { logname });
                return Err(config_error(source));
            }
        };
        let config = log.borrow_and_update().clone();
        let mount = MountContext {
            rpc,
            opts: &opts,
            config: &config,
            client_uuid,
            instance,
            seed: rng.u64(..),
            lock_budget: Arc::default(),
        };
        match mount.connect(&mgc).await {
            Ok(client) => {
                cpt::spawn(follow(Arc::downgrade(&client), log));
                let locations = mgc.follow_nid_table(&fsname);
                cpt::spawn(follow_locations(Arc::downgrade(&client), locations));
                cpt::spawn(crate::watch::watch(Arc::downgrade(&client)));
                Ok(client)
            }
            Err(e) => {
                mgc.disconnect().await;
                Err(e)
            }
        }
    }
}

/// The inputs of a mount after its configuration was read.
struct MountContext<'a> {
    rpc: &'a Arc<Ptlrpc>,
    opts: &'a MountOptions,
    config: &'a Arc<FsConfig>,
    client_uuid: String,
    /// Suffix of this mount's parameter and import names; different for each mount.
    instance: String,
    /// First cookie of MDT locks.
    seed: u64,
    lock_budget: Arc<UnusedLockBudget>,
}

impl MountContext<'_> {
    async fn connect(self, mgc: &Arc<Mgc>) -> Result<Arc<Client>, ClientError> {
        let fsname = &self.opts.fsname;
        let (inodes, kernel) = (Arc::new(Inodes::new(DirChunkFifo::default())), Kernel::default());
        let mut mdts: Vec<_> = self.config.mdts.iter().filter(|t| t.active).collect();
        mdts.sort_by_key(|t| t.index);
        if mdts.first().is_none_or(|t| t.index != 0) {
            return Err(ClientError::NoMdt {
                fsname: fsname.clone(),
            });
        }
        let (mut mdcs, mut owners, mut param_groups) = (Vec::new(), Vec::new(), Vec::new());
        for target in mdts {
            let owner = MdcOwner::new(inodes.clone(), kernel.clone(), Handle::current());
            let mdc = Arc::new(self.new_mdc(target, &owner, &kernel));
            owner.set_mdc(&mdc);
            let name = format!("{}-mdc-{}", target.name, self.instance);
            param_groups.push(mdc.locks.register_params(&self.opts.params, &name));
            let mut mdc_params = self.opts.params.group(format!("mdc.{name}"));
            mdc.import.add_params(&mut mdc_params);
            param_groups.push(mdc_params);
            mdcs.push(mdc);
            owners.push(owner);
        }
        let lmv = Arc::new(Lmv::new(mdcs));
        // MDT0000 has the root and must answer now. The others connect in the background.
        let first = lmv.first();
        let name = format!("{fsname}-MDT{:04x}", first.index);
        let granted = first
            .import
            .connect()
            .await
            .map_err(|source| ClientError::Connect {
                target: name.clone(),
                source,
            })?;
        let subdir = &self.opts.subdir;
        let required = match subdir.is_empty() {
            true => REQUIRED_FLAGS,
            false => REQUIRED_FLAGS | OBD_CONNECT_SUBTREE,
        };
        let missing = required & !granted.ocd_connect_flags;
        if missing != 0 {
            first.import.disconnect().await;
            return Err(ClientError::Features {
                target: name,
                missing,
            });
        }
        for mdc in &lmv.all()[1..] {
            mdc.import.start_connecting();
        }
        let mounter = &self.opts.mounter;
        let body = pack::body(mounter, Fid::ZERO, Fid::ZERO, 0, NO_GROUP);
        let bufs = vec![body.to_bytes(), nul_terminated(subdir.as_bytes())];
        let root_reply = first.call(MDS_GET_ROOT, bufs).await;
        let root = match root_reply.and_then(|reply| reply.get::<MdtBody>(bufs::MDT_BODY)) {
            Ok(body) => body.mbo_fid1,
            Err(errno) => {
                first.import.disconnect().await;
                let (fsname, subdir) = (fsname.clone(), subdir.clone());
                return Err(match subdir.is_empty() {
                    true => ClientError::Root { fsname, errno },
                    false => ClientError::Subdir {
                        fsname,
                        subdir,
                        errno,
                    },
                });
            }
        };
        let stats = Arc::<MountStats>::default();
        let name = format!("{fsname}-{}", self.instance);
        param_groups.push(stats.register_params(&self.opts.params, &name));
        let data = DataConfig {
            client_uuid: self.client_uuid.clone(),
            instance: self.instance.clone(),
            params: self.opts.params.clone(),
            kernel: kernel.clone(),
            clock: self.opts.clock.clone(),
            nanoseconds: self.opts.nanoseconds,
            lock_budget: self.lock_budget.clone(),
            stats: stats.clone(),
            lmv: lmv.clone(),
        };
        let lov = Lov::new(self.rpc, self.config, data);
        owners.iter().for_each(|owner| owner.set_lov(&lov));
        Ok(Arc::new(Client {
            fsname: fsname.clone(),
            root,
            lmv,
            lov,
            mgc: mgc.clone(),
            config: RwLock::new(self.config.clone()),
            unknown_targets: tokio::sync::Mutex::default(),
            inodes,
            kernel,
            clock: self.opts.clock.clone(),
            jobs: self.opts.jobs.clone(),
            stats,
            atime: AtimeRules::new(self.opts.atime, self.opts.diratime),
            mounter: mounter.uid,
            user_fid2path: self.opts.user_fid2path,
            open_dirs: Arc::default(),
            statfs: tokio::sync::Mutex::default(),
            unmounted: AtomicBool::new(false),
            param_groups: Mutex::new(param_groups),
        }))
    }

    fn new_mdc(&self, target: &TargetConf, owner: &Arc<MdcOwner>, kernel: &Kernel) -> Mdc {
        let locks = LockClient::new(
            owner.clone(),
            LockClientConfig {
                seed: self.seed,
                budget: self.lock_budget.clone(),
                ..LockClientConfig::default()
            },
        );
        let import = Import::new(
            self.rpc,
            ImportConfig {
                name: format!("{}-mdc-{}", target.name, self.instance),
                target_uuid: target.uuid.clone(),
                client_uuid: self.client_uuid.clone(),
                nids: target.nids.clone(),
                kind: ImportKind::Mdc,
                connect: connect_data(self.opts),
                max_rpcs_in_flight: MDC_RPCS_IN_FLIGHT,
                owner: owner.clone(),
            },
        );
        locks.set_import(import.clone());
        let caches = (owner.inodes().clone(), kernel.clone());
        Mdc::new(target.index, import, locks, caches)
    }
}

#[cfg(test)]
mod tests {
    use super::{Client, Rng, uuid};

    #[test]
    fn equal_seeds_give_equal_uuids() {
        let mut rng = Rng::with_seed(1);
        let first = uuid(&mut rng);
        assert_eq!(first, uuid(&mut Rng::with_seed(1)));
        assert_ne!(first, uuid(&mut rng));
        assert_eq!(first.len(), 36);
    }

    #[test]
    fn file_system_names_that_are_empty_or_too_long_or_have_other_characters_are_rejected() {
        assert!(Client::check_fsname("testfs").is_ok());
        for bad in ["", "ninechars", "a/b", "a b"] {
            assert!(Client::check_fsname(bad).is_err(), "{bad:?}");
        }
    }
}
