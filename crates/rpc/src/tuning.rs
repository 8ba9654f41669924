//! The administrator's settings of services: threads, partitions and binding, and the services that
//! each setting applies to.

use crate::{RpcError, ServiceConfig, Spread};

/// The settings of a group of services, such as all services for metadata requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tuning {
    /// Threads on all partitions together; 0: [`ServiceConfig::threads_per_cpt`] computes them.
    pub threads: usize,
    /// Maximum of threads on all partitions; 0: the service's default.
    pub max: usize,
    /// Partitions to run on; empty: all.
    pub cpts: Vec<usize>,
    /// Whether requests run on the CPUs of the partition that queued them.
    pub bind: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            threads: 0,
            max: 0,
            cpts: Vec::new(),
            bind: true,
        }
    }
}

/// The settings of all services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicesTuning {
    /// `mds_*`: metadata requests.
    pub mds: Tuning,
    /// `mds_rdpg_*`: requests to the readpage portal, such as readdir, getattr and close.
    pub mds_rdpg: Tuning,
    /// `mds_io_*`: Data-on-MDT. Its `threads` is ignored: the service has as many threads as `mds`.
    pub mds_io: Tuning,
    /// `oss_*`: requests to OSTs. Reads and writes run on the partitions of `oss_io_cpts` instead,
    /// and object creation has the threads of `oss_create`.
    pub oss: Tuning,
    /// `oss_io_cpts`: the partitions of reads and writes.
    pub oss_io_cpts: Vec<usize>,
    /// `oss_create_*`: object creation, FID sequences, updates by other servers. Its `cpts` is
    /// ignored: these services run on the partitions of `oss`.
    pub oss_create: Tuning,
    /// `ldlm_*`: lock callbacks and cancels.
    pub ldlm: Tuning,
}

impl ServicesTuning {
    /// The settings of a service. Services that run on one partition ignore lists of partitions.
    fn for_service(&self, service: &str) -> Tuning {
        let oss = self.oss.clone();
        let with_cpts = |t: &Tuning, cpts: &[usize]| Tuning {
            cpts: cpts.to_vec(),
            ..t.clone()
        };
        match service {
            "mdt" | "mdt_out" => self.mds.clone(),
            "mdt_readpage" => self.mds_rdpg.clone(),
            "mdt_seqs" | "mdt_seqm" | "mdt_fld" => with_cpts(&self.mds, &[]),
            "mdt_io" => Tuning {
                threads: self.mds.threads,
                ..self.mds_io.clone()
            },
            "ost" => oss,
            "ost_io" => with_cpts(&oss, &self.oss_io_cpts),
            "ost_create" | "ost_seq" | "ost_out" => with_cpts(&self.oss_create, &oss.cpts),
            "ldlm_cbd" | "ldlm_canceld" => self.ldlm.clone(),
            _ => Tuning::default(),
        }
    }

    /// The service's configuration with the settings applied.
    pub(crate) fn apply(&self, service: &ServiceConfig) -> ServiceConfig {
        let settings = self.for_service(service.name);
        let spread = match &service.spread {
            Spread::All if !settings.cpts.is_empty() => Spread::Only(settings.cpts),
            spread => spread.clone(),
        };
        ServiceConfig {
            max: if settings.max > 0 {
                settings.max
            } else {
                service.max
            },
            user: (settings.threads > 0)
                .then_some(settings.threads)
                .or(service.user),
            bind: settings.bind,
            spread,
            ..service.clone()
        }
    }

    /// Checks that all listed partitions exist. The process has `ncpts` partitions.
    ///
    /// # Errors
    ///
    /// [`RpcError::NoPartition`] for the first listed partition that does not exist.
    pub fn check(&self, ncpts: usize) -> Result<(), RpcError> {
        let lists = [
            ("mds_num_cpts", &self.mds.cpts),
            ("mds_rdpg_num_cpts", &self.mds_rdpg.cpts),
            ("mds_io_num_cpts", &self.mds_io.cpts),
            ("oss_cpts", &self.oss.cpts),
            ("oss_io_cpts", &self.oss_io_cpts),
            ("ldlm_cpts", &self.ldlm.cpts),
        ];
        for (param, cpts) in lists {
            if let Some(&cpt) = cpts.iter().find(|&&cpt| cpt >= ncpts) {
                return Err(RpcError::NoPartition { param, cpt, ncpts });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{ServicesTuning, Tuning};
    use crate::services::{LDLM, MDS, OSS};
    use crate::{ServiceConfig, Spread};

    fn find<'a>(services: &'a [ServiceConfig], name: &str) -> &'a ServiceConfig {
        services.iter().find(|s| s.name == name).unwrap_or(&services[0])
    }

    #[test]
    fn each_service_has_the_partitions_and_threads_of_its_kind() {
        let on = |cpts: &[usize]| Tuning {
            cpts: cpts.to_vec(),
            ..Tuning::default()
        };
        let settings = ServicesTuning {
            mds: Tuning {
                threads: 64,
                ..on(&[1, 2, 3])
            },
            mds_io: Tuning { max: 32, ..on(&[2]) },
            oss: Tuning { max: 100, ..on(&[0]) },
            oss_io_cpts: vec![1],
            oss_create: Tuning {
                threads: 16,
                ..Tuning::default()
            },
            ..ServicesTuning::default()
        };
        let mdt = settings.apply(find(MDS, "mdt"));
        assert_eq!((mdt.spread, mdt.user), (Spread::Only(vec![1, 2, 3]), Some(64)));
        assert_eq!(settings.apply(find(MDS, "mdt_readpage")).spread, Spread::All);
        assert_eq!(settings.apply(find(MDS, "mdt_fld")).spread, Spread::First);
        let io = settings.apply(find(MDS, "mdt_io"));
        assert_eq!(
            (io.spread, io.user, io.max),
            (Spread::Only(vec![2]), Some(64), 32)
        );
        let ost_io = settings.apply(find(OSS, "ost_io"));
        assert_eq!((ost_io.spread, ost_io.max), (Spread::Only(vec![1]), 100));
        let create = settings.apply(find(OSS, "ost_create"));
        assert_eq!(
            (create.spread, create.user, create.max),
            (Spread::Only(vec![0]), Some(16), 64)
        );
        assert_eq!(settings.apply(&LDLM[0]).spread, Spread::All);
    }

    #[test]
    fn an_error_names_the_missing_partition() {
        let settings = ServicesTuning {
            oss_io_cpts: vec![0, 4],
            ..ServicesTuning::default()
        };
        let result = settings.check(4).map_err(|e| e.to_string());
        assert_eq!(
            result,
            Err("oss_io_cpts names CPU partition 4, but there are only 4: from 0 to 3".to_owned())
        );
        assert!(settings.check(5).is_ok());
    }
}
