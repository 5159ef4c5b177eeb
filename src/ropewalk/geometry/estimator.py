"""Combined QK PCA as a scikit-learn estimator (docs/method.md §2-3)."""

from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.errors import RopewalkError
from ropewalk.geometry.moments import Floats, Moments, no_moments
from ropewalk.geometry.pca import COMPONENTS, UNDECIDED, combined_pca
from ropewalk.text import install_extra

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils import check_scalar
    from sklearn.utils.validation import check_array, check_is_fitted, validate_data
except ImportError as error:
    raise RopewalkError(f"CombinedPCA needs scikit-learn: {install_extra('sklearn')}") from error


class CombinedPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """PCA of the queries and keys of one attention head pooled, and the correlation of each component with position.

    With queries X [n_q, d], keys y [n_k, d] and token positions t, S the scatter of all n = n_q + n_k vectors about
    their common mean, and Sxx, Sxt, Stt the centred second moments of queries or keys and their positions:

        S v_j = λ_j v_j,  λ_0 ≥ λ_1 ≥ ...
        explained_variance_j = λ_j / (n - 1)        explained_variance_ratio_j = λ_j / tr S
        r_q(j) = v_jᵀ Sxt_q / sqrt(v_jᵀ Sxx_q v_j · Stt_q)        r_k(j) likewise with the keys
        transform(X) = X Vᵀ,  V [n_components, d] with the rows v_j

    `transform` subtracts no mean, unlike `sklearn.decomposition.PCA`: queries and keys turned by one rotation keep
    their scores, (V q)·(V k) = q·k with all components, and taking a mean from either would change them. Without keys
    the components are those of a plain PCA of X.

    Signs: each v_j is oriented so that r_q ≥ 0, or r_k ≥ 0 where |r_q| < 0.05. Where r_k is missing too, the largest
    entry of v_j is positive. So r_k < 0 says that the keys' position runs against the queries'.

    Parameters
    ----------
    n_components : int or None, default=10
        Components to keep; all d of them where d is smaller, or for None. Components beyond the rank of the data are
        orthonormal to the others, explain nothing, and have no correlation.

    Attributes
    ----------
    components_ : [n_components_, d]
        The directions v_j, largest variance first.
    explained_variance_, explained_variance_ratio_ : [n_components_]
        Variance along each component, of queries and keys pooled, and its share of all variance.
    r_q_, r_k_ : [n_components_]
        Pearson correlation with position of the queries' and the keys' projections. NaN for a constant projection or
        constant positions; r_k_ is NaN without keys.
    eigengap_ : float
        (λ_0 - λ_1) / λ_0. Near 0 the first component is not a stable direction; NaN without variance or where d = 1.
    mean_q_, mean_k_ : [d]
        Means of queries and of keys (NaN without keys).
    n_samples_q_, n_samples_k_ : int
        Queries and keys seen.
    n_components_ : int
        Components kept.
    n_features_in_ : int
        Length d of the vectors.
    feature_names_in_ : [d]
        Names of the columns of X, where it is a table whose columns have names.

    Notes
    -----
    In a `Pipeline`, the steps before this one change X and leave y alone. Keys then have to be changed in the same way
    beforehand, or left out.

    Examples
    --------
    Queries and keys that drift with position, in opposite directions, along one axis:

    >>> import numpy as np
    >>> from ropewalk.geometry.estimator import CombinedPCA
    >>> generator = np.random.default_rng(0)
    >>> positions = np.arange(500)
    >>> drift = 0.02 * positions[:, None] * np.eye(16)[3]
    >>> q = generator.normal(size=(500, 16)) + drift
    >>> k = generator.normal(size=(500, 16)) - drift
    >>> pca = CombinedPCA(n_components=4).fit(q, k, positions)
    >>> print(pca.r_q_[0].round(2), pca.r_k_[0].round(2))
    0.94 -0.95
    >>> int(np.abs(pca.components_[0]).argmax())
    3
    >>> pca.transform(k).shape
    (500, 4)
    >>> whole = CombinedPCA(n_components=None).fit(q, k, positions)
    >>> np.allclose(whole.transform(q) @ whole.transform(k).T, q @ k.T)
    True
    """

    def __init__(self, n_components: int | None = COMPONENTS) -> None:
        self.n_components = n_components

    def fit(self, X: Any, y: Any = None, positions: Any = None) -> "CombinedPCA":
        """Fit on queries X [n_q, d], keys y [n_k, d] and token positions, forgetting what was fitted before.

        positions is one array [n], for the queries and (where n_q = n_k) the keys alike, or a pair of arrays
        ([n_q], [n_k]). None, for all or for one of the pair, means row numbers 0, 1, ... At least two queries are
        needed, and two keys where there are any.

        A one-dimensional y is no set of keys but a target, which pipelines hand to every step: it is ignored, as
        transformers do. Positions are always the third argument.
        """
        return self._update(X, y, positions, fresh=True, least=2)

    def partial_fit(self, X: Any, y: Any = None, positions: Any = None) -> "CombinedPCA":
        """Add queries X, keys y and their positions to what was fitted before; arguments as in `fit`.

        The moments of the parts merge exactly (docs/method.md §2): any split into calls gives the fit of all at once,
        and memory does not grow with the number of tokens. A call may bring a single query, and no keys.

        Where positions are None they are row numbers within the call, starting at 0 again: right for one document per
        call. The parts of one document need their positions given.
        """
        return self._update(X, y, positions, fresh=not hasattr(self, "components_"), least=1)

    def transform(self, X: Any) -> NDArray[np.floating]:
        """Projections X Vᵀ [n, n_components_] of queries or keys X [n, d], in float32 where X is.

        No mean is subtracted: with all components the scores q·k stay as they are.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return np.asarray(X @ self.components_.T.astype(X.dtype, copy=False))

    def fit_transform(self, X: Any, y: Any = None, positions: Any = None) -> NDArray[np.floating]:
        """Fit on queries X, keys y and positions as `fit` does, and project the queries (`transform(y)`: the keys)."""
        return self.fit(X, y, positions).transform(X)

    def inverse_transform(self, X: Any) -> NDArray[np.floating]:
        """Vectors X V [n, d] with the projections X [n, n_components_].

        The inverse of `transform` with all components; with fewer, the nearest points in their span through the origin.
        """
        check_is_fitted(self)
        X = check_array(X, dtype=[np.float64, np.float32], estimator=self, input_name="X")
        if X.shape[1] != self.n_components_:
            raise ValueError(f"X has {X.shape[1]} columns, but CombinedPCA has {self.n_components_} components")
        return np.asarray(X @ self.components_.astype(X.dtype, copy=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        """Number of columns that `transform` gives, for `get_feature_names_out`."""
        return int(self.n_components_)

    def _update(self, X: Any, y: Any, positions: Any, fresh: bool, least: int) -> "CombinedPCA":
        if self.n_components is not None:
            check_scalar(self.n_components, "n_components", Integral, min_val=1)
        q = validate_data(self, X, reset=fresh, dtype=np.float64, ensure_min_samples=least)
        k = self._keys(y, len(q), least)
        t_q, t_k = _positions(positions, len(q), len(k))
        moments_q, moments_k = _moments(q, t_q), _moments(k, t_k)
        if not fresh:
            moments_q, moments_k = self._moments_q.merge(moments_q), self._moments_k.merge(moments_k)
        self._moments_q: Moments = moments_q
        self._moments_k: Moments = moments_k
        self._describe()
        return self

    def _keys(self, y: Any, n_q: int, least: int) -> Floats:
        """The keys [n_k, d], none of them where y is None or a one-dimensional target."""
        d = self.n_features_in_
        shape = (n_q,) if y is None else _shape(y)
        if shape == (n_q,):
            return np.empty((0, d))
        if len(shape) == 1:
            raise ValueError(
                f"y has one dimension and {shape[0]} values for {n_q} rows of X: it is neither keys [n_k, {d}] nor a "
                f"target [{n_q}]"
            )
        k = check_array(y, dtype=np.float64, ensure_min_samples=least, estimator=self, input_name="y")
        if k.shape[1] != d:
            raise ValueError(f"y (keys) has {k.shape[1]} features, but X (queries) has {d}")
        if hasattr(y, "columns") and list(y.columns) != list(getattr(self, "feature_names_in_", y.columns)):
            raise ValueError("The columns of y (keys) should have the names and the order of those of X (queries)")
        return np.asarray(k)

    def _describe(self) -> None:
        """Set the fitted attributes from the moments."""
        q, k = self._moments_q, self._moments_k
        d = q.head_dim
        m = d if self.n_components is None else min(int(self.n_components), d)
        # A second component is always computed: the eigengap does not depend on how many are kept.
        pca = combined_pca(q, k, max(m, 2))
        components, r_q, r_k = pca.vectors[0, :, :m].T, pca.r_q[0, :m], pca.r_k[0, :m]
        sign = _fallback_sign(components, r_q, r_k)
        n = q.n[0] + k.n[0]
        self.n_components_ = m
        self.components_ = np.ascontiguousarray(components * sign[:, None])
        self.explained_variance_ = pca.eigenvalues[0, :m] / (n - 1 if n > 1 else np.nan)
        self.explained_variance_ratio_ = pca.explained_variance[0, :m]
        self.r_q_, self.r_k_ = r_q * sign, r_k * sign
        self.eigengap_ = float(pca.eigengap[0])
        self.mean_q_ = q.mean[0]
        self.mean_k_ = k.mean[0] if k.n[0] else np.full(d, np.nan)
        self.n_samples_q_, self.n_samples_k_ = int(q.n[0]), int(k.n[0])


def _moments(x: Floats, t: Floats) -> Moments:
    """Moments of vectors [n, d] at positions [n], as a stack of one head; all zero for n = 0."""
    if len(x) == 0:
        return no_moments(x.shape[1])
    # About the first token, so that what is constant has a variance of exactly zero and not of rounding.
    moments = Moments.of((x - x[0])[None], t - t[0])
    return replace(moments, mean=moments.mean + x[0], t_mean=moments.t_mean + t[0])


def _fallback_sign(components: Floats, r_q: Floats, r_k: Floats) -> Floats:
    """Sign [m] that makes the largest entry of components [m, d] positive where no correlation decides; else 1.

    LAPACK may return either sign, and a split into parts should not show in it.
    """
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)[:, 0]
    undecided = ~(np.abs(r_q) >= UNDECIDED) & np.isnan(r_k)
    return np.where(undecided & (largest < 0), -1.0, 1.0)


def _positions(positions: Any, n_q: int, n_k: int) -> tuple[Floats, Floats]:
    """Positions [n_q] of queries and [n_k] of keys, from one array, a pair of arrays, or None."""
    if positions is None:
        positions = (None, None)
    if not _is_pair(positions):
        return _checked(positions, n_q, "queries"), _checked(positions if n_k else None, n_k, "keys")
    of_q, of_k = positions
    if of_k is not None and not n_k:
        raise ValueError("positions has positions of keys, but there are no keys: y is None or one-dimensional")
    return _checked(of_q, n_q, "queries"), _checked(of_k, n_k, "keys")


def _is_pair(positions: Any) -> bool:
    try:
        of_q, of_k = positions
    except (TypeError, ValueError):
        return False
    # Two numbers are the positions of two tokens.
    return all(part is None or len(_shape(part)) == 1 for part in (of_q, of_k))


def _checked(positions: Any, n: int, tokens: str) -> Floats:
    """Finite positions [n]; row numbers for None."""
    if positions is None:
        return np.arange(n, dtype=np.float64)
    if len(_shape(positions)) != 1:
        raise ValueError("positions should be one array [n], a pair of arrays ([n_q], [n_k]), or None")
    t = check_array(positions, dtype=np.float64, ensure_2d=False, ensure_min_samples=0, input_name="positions")
    if len(t) != n:
        remedy = "; a pair (of queries, of keys) gives each its own" if tokens == "keys" else ""
        raise ValueError(f"positions has {len(t)} values for {n} {tokens}{remedy}")
    return np.asarray(t)


def _shape(values: Any) -> tuple[int, ...]:
    return tuple(values.shape if hasattr(values, "shape") else np.asarray(values).shape)
