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
use crate::mdc_builder::{MdcBuilder, REQUIRED_FLAGS, connect_data};
use crate::pack;
use crate::stats::MountStats;
use fastrand::Rng;
use ldlm::UnusedLockBudget;
use mgc::{FsConfig, Mgc, MgcError};
use parking_lot::{Mutex, RwLock};
use rpc::Ptlrpc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use wire::format::bufs;
use wire::{Fid, MDS_GET_ROOT, MdtBody, OBD_CONNECT_SUBTREE, WireStruct, nul_terminated};

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
        let builder = MdcBuilder {
            rpc: self.rpc.clone(),
            client_uuid: self.client_uuid.clone(),
            instance: self.instance.clone(),
            connect: connect_data(self.opts),
            seed: self.seed,
            lock_budget: self.lock_budget.clone(),
            params: self.opts.params.clone(),
            inodes: inodes.clone(),
            kernel: kernel.clone(),
            lov: Arc::default(),
        };
        let mut mdts = mdts.into_iter();
        let Some(first) = mdts.next().filter(|t| t.index == 0) else {
            return Err(ClientError::NoMdt {
                fsname: fsname.clone(),
            });
        };
        let (first, mut param_groups) = builder.build(first);
        let lmv = Arc::new(Lmv::new(first, self.seed));
        for target in mdts {
            param_groups.extend(builder.add(&lmv, target));
        }
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
        for mdc in lmv.all().skip(1) {
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
        builder.set_lov(&lov);
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
            lazy_close: self.opts.lazy_close,
            open_dirs: Arc::default(),
            statfs: tokio::sync::Mutex::default(),
            unmounted: AtomicBool::new(false),
            param_groups: Mutex::new(param_groups),
            mdc_builder: builder,
        }))
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
