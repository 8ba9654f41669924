//! Executes a plan: for each experiment, run and load, measures all configurations in turn. Every
//! second run measures them in reverse order, so that disturbances of the machine affect all
//! configurations alike.

use super::load::DemoLoad;
use super::plan::{Configuration, Experiment, Plan};
use super::rows::{Row, Sample};
use crate::BenchError;
use std::sync::atomic::{AtomicBool, Ordering};

/// Starts servers and clients, and measures.
pub trait Stage {
    /// Starts the servers and clients of an experiment.
    ///
    /// # Errors
    ///
    /// A server or client cannot be started.
    fn open(&mut self, experiment: &Experiment) -> Result<(), BenchError>;
    /// Measures one load on one configuration; returns a sample for each operation.
    ///
    /// # Errors
    ///
    /// The load fails.
    fn measure(&mut self, configuration: &Configuration, load: &DemoLoad) -> Result<Vec<Sample>, BenchError>;
    /// Stops the servers and clients, also after an error.
    fn close(&mut self);
}

/// Progress of a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// The next measurement begins.
    Next {
        /// Description of the measurement.
        text: String,
        /// Number of measurements done.
        done: usize,
        /// Number of all measurements.
        total: usize,
    },
    /// The results of a measurement.
    Rows(&'a [Row]),
}

/// Executes a plan until the end, an error, or `stop`. `on_event` gets the results as they arrive.
///
/// # Errors
///
/// The first error of the stage, or [`BenchError::Interrupted`].
pub fn run(
    plan: &Plan,
    stage: &mut dyn Stage,
    stop: &AtomicBool,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<(), BenchError> {
    let mut done = 0;
    for experiment in &plan.experiments {
        let outcome = stage
            .open(experiment)
            .and_then(|()| measure_all(plan, experiment, stage, stop, &mut done, on_event));
        stage.close();
        outcome?;
    }
    Ok(())
}

fn measure_all(
    plan: &Plan,
    experiment: &Experiment,
    stage: &mut dyn Stage,
    stop: &AtomicBool,
    done: &mut usize,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<(), BenchError> {
    // Each configuration, and whether it is the baseline.
    let mut configurations: Vec<(bool, &Configuration)> = experiment
        .configurations
        .iter()
        .enumerate()
        .map(|(i, configuration)| (i == 0, configuration))
        .collect();
    for run in 1..=plan.runs {
        for load in &experiment.loads {
            for &(baseline, configuration) in &configurations {
                if stop.load(Ordering::Relaxed) {
                    return Err(BenchError::Interrupted);
                }
                on_event(Event::Next {
                    text: format!(
                        "{}, run {run} of {}: {}: {load}",
                        experiment.kind.name(),
                        plan.runs,
                        configuration.title()
                    ),
                    done: *done,
                    total: plan.measurements(),
                });
                let samples = stage.measure(configuration, load)?;
                let row = |s| Row::new(experiment.kind, configuration, baseline, load, run, s);
                let rows: Vec<Row> = samples.into_iter().map(row).collect();
                on_event(Event::Rows(&rows));
                *done += 1;
            }
        }
        configurations.reverse();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::demo::{Demo, ExperimentKind, Resources, Size};
    use std::collections::HashMap;

    /// A stage that records its calls.
    #[derive(Default)]
    struct RecordingStage {
        /// Number of experiments that are open.
        open: usize,
        /// Configuration and load of each measurement.
        measured: Vec<String>,
        /// Number of measurements after which the next one fails.
        fails_after: Option<usize>,
    }

    impl Stage for RecordingStage {
        fn open(&mut self, _: &Experiment) -> Result<(), BenchError> {
            self.open += 1;
            Ok(())
        }

        fn measure(
            &mut self,
            configuration: &Configuration,
            load: &DemoLoad,
        ) -> Result<Vec<Sample>, BenchError> {
            assert_eq!(self.open, 1);
            if self.fails_after == Some(self.measured.len()) {
                return Err(BenchError::PeerEnded);
            }
            self.measured.push(format!("{} {load}", configuration.name));
            Ok(vec![Sample {
                operation: "create".to_owned(),
                operations: 10,
                seconds: 2.0,
                cpu_us: 1.0,
                server_cpu_us: 0.5,
                latency_us: None,
            }])
        }

        fn close(&mut self) {
            self.open -= 1;
        }
    }

    fn plan() -> Plan {
        let resources = Resources {
            cpus: 2,
            published_count: 1,
            osts: 1,
            forced: false,
        };
        let size = Size {
            runs: 2,
            ..Size::named(Demo::Smp, "small").unwrap()
        };
        Plan::new(
            Demo::Smp,
            &size,
            &resources,
            &[ExperimentKind::Mounts, ExperimentKind::Cpt],
        )
    }

    #[test]
    fn all_configurations_are_measured_in_every_run() {
        let (plan, mut stage, mut rows) = (plan(), RecordingStage::default(), Vec::new());
        run(&plan, &mut stage, &AtomicBool::new(false), &mut |event| {
            if let Event::Rows(new) = event {
                rows.extend_from_slice(new);
            }
        })
        .unwrap();
        assert_eq!((stage.open, stage.measured.len()), (0, plan.measurements()));
        let mut counts = HashMap::new();
        for measurement in &stage.measured {
            *counts.entry(measurement).or_insert(0) += 1;
        }
        // Both experiments have the same two configurations.
        assert!(counts.values().all(|n| [2, 4].contains(n)), "{counts:?}");
        // All configurations follow each other for each load, in the second run in reverse order.
        assert!(stage.measured[0].starts_with("1 (1:1)") && stage.measured[1].starts_with("2 (2:2)"));
        assert!(stage.measured[6].starts_with("2 (2:2)") && stage.measured[7].starts_with("1 (1:1)"));
        assert_eq!(rows.len(), plan.measurements());
        assert!(
            rows.iter()
                .all(|r| r.rate == 5.0 && r.baseline == (r.configuration == "1 (1:1)"))
        );
        assert_eq!(rows.iter().map(|r| r.run).max(), Some(2));
    }

    #[test]
    fn error_and_interruption_keep_rows_and_close_the_stage() {
        let (plan, mut rows) = (plan(), 0);
        let mut stage = RecordingStage {
            fails_after: Some(3),
            ..RecordingStage::default()
        };
        let mut count = |event: Event<'_>| {
            if let Event::Rows(new) = event {
                rows += new.len();
            }
        };
        let outcome = run(&plan, &mut stage, &AtomicBool::new(false), &mut count);
        assert!(matches!(outcome, Err(BenchError::PeerEnded)));
        assert_eq!((rows, stage.open), (3, 0));

        let stop = AtomicBool::new(false);
        let mut stage = RecordingStage::default();
        let outcome = run(&plan, &mut stage, &stop, &mut |event| {
            if matches!(event, Event::Next { done: 1, .. }) {
                stop.store(true, Ordering::Relaxed);
            }
        });
        assert!(matches!(outcome, Err(BenchError::Interrupted)));
        assert_eq!((stage.measured.len(), stage.open), (2, 0));
    }
}
