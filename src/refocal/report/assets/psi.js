"use strict";

// 1 + gamma s of the largest class, where s = log(1 + odds) / odds and odds are those against the class. Near p = 1 it
// uses the series 1 - s = sum_k q^k / (k (k + 1)), so that nothing cancels for gamma near -1.
function focusOfTop(odds, gamma) {
  const q = odds / (1 + odds);
  if (q >= 0.125) return 1 + gamma * Math.log1p(odds) / odds;
  let deficit = 0;
  for (let k = 18; k >= 1; k--) deficit = q * (1 / (k * (k + 1)) + deficit);
  return (1 + gamma) - gamma * deficit;
}

// Writes log Psi^gamma(softmax(z / T)) of the row of K logits that begins at `at` to `out`; returns the largest class.
// Odds are relative to the runner-up, and 1 - p of the largest class is the sum of the others: nothing saturates.
function logPosterior(z, at, K, gamma, T, out) {
  let top = 0;
  for (let j = 1; j < K; j++) if (z[at + j] > z[at + top]) top = j;
  let second = -Infinity;
  for (let j = 0; j < K; j++) if (j !== top && z[at + j] > second) second = z[at + j];
  if (second === -Infinity) {
    out.fill(-Infinity, 0, K);
    out[top] = 0;
    return top;
  }
  const gap = (z[at + top] - second) / T;
  let rest = 0;
  for (let j = 0; j < K; j++) {
    if (j === top) continue;
    out[j] = (z[at + j] - second) / T;
    rest += Math.exp(out[j]);
  }
  const tiny = Math.exp(-gap), against = rest * tiny, logTotal = Math.log1p(against);
  const far = gap > 40 || gamma < 0; // then e^gap is not computed, and (1 + gamma) gap is one product
  const offset = far ? rest - 1 : Math.expm1(gap);
  const scale = far ? tiny : 1 / rest;
  const base = (far ? gamma * Math.log(rest) - (1 + gamma) * gap : -gap) + Math.log(focusOfTop(against, gamma));
  let others = 0;
  for (let j = 0; j < K; j++) {
    if (j === top) continue;
    const odds = Math.exp(out[j]), p = odds * (tiny / (1 + against));
    const s = p > 0 ? -p * (out[j] - gap - logTotal) / (1 - p) : 0;
    out[j] += base - gamma * Math.log1p(((1 - odds) + offset) * scale) - Math.log1p(gamma * s);
    others += Math.exp(out[j]);
  }
  const logSum = Math.log1p(others);
  for (let j = 0; j < K; j++) out[j] = (j === top ? 0 : out[j]) - logSum;
  return top;
}

// Computes error, NLL, mean confidence (for two classes, mean P(y = 1)), ECE and the reliability diagram over equal-width bins (a, b].
function measureRows(logits, labels, K, gamma, T, bins) {
  const N = labels.length, row = new Float64Array(K);
  const count = new Float64Array(bins), sure = new Float64Array(bins);
  const right = new Float64Array(bins), variance = new Float64Array(bins);
  let nll = 0, wrong = 0, confidence = 0;
  for (let i = 0; i < N; i++) {
    const top = logPosterior(logits, i * K, K, gamma, T, row), claim = K === 2 ? 1 : top, p = Math.exp(row[claim]);
    const bin = Math.min(Math.max(Math.ceil(p * bins) - 1, 0), bins - 1);
    count[bin] += 1;
    sure[bin] += p;
    variance[bin] += p * (1 - p);
    if (claim === labels[i]) right[bin] += 1;
    if (top !== labels[i]) wrong += 1;
    nll -= row[labels[i]];
    confidence += p;
  }
  const diagram = { count: [], confidence: [], accuracy: [], low: [], high: [] };
  let gaps = 0;
  for (let b = 0; b < bins; b++) {
    if (!count[b]) continue;
    gaps += Math.abs(sure[b] - right[b]);
    const mean = sure[b] / count[b], half = 1.959964 * Math.sqrt(variance[b]) / count[b];
    diagram.count.push(count[b]);
    diagram.confidence.push(mean);
    diagram.accuracy.push(right[b] / count[b]);
    diagram.low.push(Math.max(mean - half, 0));
    diagram.high.push(Math.min(mean + half, 1));
  }
  return { ece: gaps / N, nll: nll / N, error: wrong / N, confidence: confidence / N, diagram };
}
