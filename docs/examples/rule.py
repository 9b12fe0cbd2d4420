"""A rule with a parameter: the mean of a product of densities, and the variance of an average client, widened."""

import tensorflow as tf

import tfp_bfl as bfl

each = tf.nest.map_structure


def precise_mean(width=1.0):
    """mean = sum_k w_k m_k / s_k^2 / sum_k w_k / s_k^2,   variance = width sum_k w_k s_k^2 / sum_k w_k."""

    def summarise(local, anchor, weight):  # on the client; `anchor` is the posterior that it started from
        precision = each(lambda v: weight / v, local.variance)
        return {
            "weight": weight,
            "precision": precision,
            # Centred: clients lie close to the anchor, and float32 would lose the difference in a sum of raw means.
            "shift": each(lambda p, m, a: p * (m - a), precision, local.mean, anchor.mean),
            "variance": each(lambda v: weight * v, local.variance),
        }

    def merge(a, b):  # anywhere between client and server, in any order
        return each(tf.add, a, b)

    def pool(total, anchor):  # on the server
        mean = each(lambda a, shift, p: a + shift / p, anchor.mean, total["shift"], total["precision"])
        variance = each(lambda v: width * v / total["weight"], total["variance"])
        return bfl.rules.Pooled(bfl.posterior.MeanField(mean, variance))

    return bfl.rules.Rule(summarise, merge, pool, f"precise_mean:{width}")


if __name__ == "__main__":
    two_clients = bfl.posterior.MeanField(mean=tf.constant([[0.0], [3.0]]), variance=tf.constant([[1.0], [2.0]]))
    pooled = bfl.rules.aggregate(precise_mean(), two_clients)
    print(f"mean {pooled.mean[0]:.2f}, variance {pooled.variance[0]:.2f}")  # mean 1.00, variance 1.50
