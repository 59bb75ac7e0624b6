//! Medians, spread, ratios.

use std::collections::BTreeMap;

use crate::{SIZES, Variant};

/// Nanoseconds a call, by size and variant, one for each round.
#[derive(Default)]
pub(crate) struct Results(BTreeMap<(usize, &'static str), Vec<(f64, f64)>>);

impl Results {
    pub(crate) fn add(&mut self, size: usize, variant: Variant, calls: usize, times: &[[u64; 3]]) {
        let first = times.iter().map(|[from, _, _]| *from).min().unwrap_or(0);
        let last = times.iter().map(|[_, to, _]| *to).max().unwrap_or(0);
        let used: u64 = times.iter().map(|[_, _, used]| *used).sum();
        let per_call = |ns: u64| ns as f64 / calls as f64;
        self.0.entry((size, variant.name())).or_default().push((per_call(last - first), per_call(used)));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// 10th, 50th and 90th percentile over the rounds.
    fn spread(&self, size: usize, variant: &'static str, of: impl Fn(&(f64, f64)) -> f64) -> [f64; 3] {
        let mut all: Vec<f64> = self.0[&(size, variant)].iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        [10, 50, 90].map(|percent| all[(all.len() - 1) * percent / 100])
    }

    pub(crate) fn json(&self) -> String {
        let mut lines = Vec::new();
        for (size, variant) in self.0.keys().copied() {
            let list = |[low, mid, high]: [f64; 3]| format!("{{\"p10\":{low:.1},\"p50\":{mid:.1},\"p90\":{high:.1}}}");
            let (wall, cpu) = (self.spread(size, variant, |t| t.0), self.spread(size, variant, |t| t.1));
            let rounds = self.0[&(size, variant)].len();
            lines.push(format!(
                "{{\"bytes\":{size},\"variant\":\"{variant}\",\"rounds\":{rounds},\"wall_ns\":{},\"cpu_ns\":{}}}",
                list(wall),
                list(cpu)
            ));
        }
        format!("[{}]", lines.join(",\n "))
    }

    pub(crate) fn table(&self, variants: &[Variant]) -> String {
        let mut text = String::from("ns a call, median (p10 to p90) over rounds\n");
        for (size, _) in SIZES {
            for variant in variants.iter().filter(|variant| self.0.contains_key(&(size, variant.name()))) {
                let [low, wall, high] = self.spread(size, variant.name(), |t| t.0);
                let [cpu_low, cpu, cpu_high] = self.spread(size, variant.name(), |t| t.1);
                text += &format!(
                    "{size:>5} B {:<16} wall {wall:>8.1} ({low:.1} to {high:.1})   cpu {cpu:>8.1} ({cpu_low:.1} to {cpu_high:.1})\n",
                    variant.name()
                );
            }
            if !Variant::ALL[..8].iter().all(|variant| self.0.contains_key(&(size, variant.name()))) {
                continue;
            }
            let cpu = |variant: Variant| self.spread(size, variant.name(), |t| t.1)[1];
            let wall = |variant: Variant| self.spread(size, variant.name(), |t| t.0)[1];
            for (what, of) in [("wall", &wall as &dyn Fn(Variant) -> f64), ("cpu", &cpu)] {
                let ring = of(Variant::Ring);
                text += &format!(
                    "{size:>5} B by {what}: ring is {:.2} x limit, {:.2} x limit with sum and clock, {:.2} x shared limit; write is {:.2} x ring, own file {:.2} x, writev64 {:.2} x\n",
                    ring / of(Variant::Limit),
                    ring / of(Variant::LimitSumClock),
                    ring / of(Variant::LimitShared),
                    of(Variant::Write) / ring,
                    of(Variant::WriteOwn) / ring,
                    of(Variant::Writev64) / ring,
                );
                if variants.contains(&Variant::Sdk) {
                    let sdk = of(Variant::Sdk);
                    text += &format!(
                        "{size:>5} B by {what}: the SDK is {:.2} x limit, {:.2} x limit with sum and clock; write is {:.2} x the SDK, own file {:.2} x, writev64 {:.2} x\n",
                        sdk / of(Variant::Limit),
                        sdk / of(Variant::LimitSumClock),
                        of(Variant::Write) / sdk,
                        of(Variant::WriteOwn) / sdk,
                        of(Variant::Writev64) / sdk,
                    );
                }
            }
        }
        text
    }
}
